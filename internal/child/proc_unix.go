//go:build unix && !linux

package child

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// attributes puts the child into a process group of its own, out of reach of Ctrl-C. There is no parent-death signal
// here: see endWithParent.
func attributes(c Command, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: credential(c.UID), Chroot: c.Root}
}

// endWithParent sends onDeath to the child when this process dies.
func endWithParent(pid int, onDeath syscall.Signal) (unguard func(), err error) {
	return OnDeath(signalScript, strconv.Itoa(int(onDeath)), strconv.Itoa(pid))
}

// zombie isn't looked at here.
func zombie(int) bool { return false }

// halted is asked whether a process that was sent SIGSTOP has stopped, which isn't looked at here.
func halted(int) bool { return true }

// parents maps each process of the machine to its parent.
func parents() (map[int]int, error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return nil, err
	}
	all := map[int]int{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		pid, err := strconv.Atoi(fields[0])
		parent, err2 := strconv.Atoi(fields[1])
		if err == nil && err2 == nil {
			all[pid] = parent
		}
	}
	return all, nil
}
