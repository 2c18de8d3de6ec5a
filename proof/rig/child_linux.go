package rig

import "syscall"

// childAttributes keep a child out of reach of Ctrl-C, and have the kernel kill it when this process dies.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
