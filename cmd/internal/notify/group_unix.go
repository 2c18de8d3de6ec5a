//go:build unix

package notify

import (
	"os/exec"
	"syscall"
)

// killGroup puts the program into a process group of its own, which is killed as a whole. A signal that a terminal
// sends to the relay then doesn't reach it either.
func killGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
