//go:build unix && !linux

package servers

import "syscall"

// attributes puts the child into a process group of its own, out of reach of Ctrl-C. There is no parent-death signal
// here: see watch.
func attributes(uid int, _ syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if uid != 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	return attr
}

// halted is asked whether a process that was sent SIGSTOP has stopped, which is not looked at here.
func halted(int) bool { return true }
