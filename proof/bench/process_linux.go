package main

import "syscall"

// attributes puts a child into a process group of its own, out of reach of Ctrl-C, and has the kernel kill
// it when this process dies.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
