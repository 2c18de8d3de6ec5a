package servers

import "syscall"

// attributes puts the child into a process group of its own, out of reach of Ctrl-C, and has the kernel send it
// onDeath when the thread that starts it ends.
func attributes(uid int, onDeath syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: onDeath}
	if uid != 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	return attr
}
