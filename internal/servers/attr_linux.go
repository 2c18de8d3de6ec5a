package servers

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// attributes puts the child into a process group of its own, out of reach of Ctrl-C, and has the kernel send it
// onDeath when the thread that starts it ends.
func attributes(uid int, onDeath syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: onDeath}
	if uid != 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	return attr
}

// halted reports whether all threads of a process are stopped, or gone.
func halted(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return true
	}
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			continue // gone
		}
		// The state comes after the name, which is in parentheses and may have any character in it.
		if rest := text[bytes.LastIndexByte(text, ')')+1:]; len(rest) > 1 && !bytes.ContainsAny(rest[1:2], "TtZX") {
			return false
		}
	}
	return true
}
