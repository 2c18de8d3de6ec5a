package main

import "syscall"

// childAttributes puts a child into a process group of its own, out of reach of Ctrl-C, and has the kernel kill it when
// this process dies.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// watchParent has nothing to do where the kernel sends a parent-death signal.
func watchParent(int) (unwatch func(), err error) { return func() {}, nil }
