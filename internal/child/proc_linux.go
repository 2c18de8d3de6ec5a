package child

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// attributes puts the child into a process group of its own, out of reach of Ctrl-C, and has the kernel send it onDeath
// when the thread that starts it ends.
func attributes(c Command, onDeath syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: onDeath, Credential: credential(c.UID), Chroot: c.Root}
}

// endWithParent has nothing to do: the kernel does it.
func endWithParent(int, syscall.Signal) (unguard func(), err error) { return func() {}, nil }

// stat returns what a file /proc/.../stat has after the name, which may hold anything: the state, the parent and so on.
// It is empty for a process that has ended.
func stat(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

func zombie(pid int) bool { return in("ZX", fmt.Sprintf("/proc/%d/stat", pid)) }

// halted reports whether all threads of a process are stopped, or gone.
func halted(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	return err != nil || !slices.ContainsFunc(threads, func(thread string) bool {
		return len(stat(thread)) > 0 && !in("TtZX", thread)
	})
}

// in reports whether a process or a thread is there, in one of these states.
func in(states, path string) bool {
	fields := stat(path)
	return len(fields) > 0 && strings.Contains(states, fields[0])
}

// parents maps each process of the machine to its parent.
func parents() (map[int]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	all := map[int]int{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if fields := stat("/proc/" + name + "/stat"); len(fields) > 1 {
			if parent, err := strconv.Atoi(fields[1]); err == nil {
				all[pid] = parent
			}
		}
	}
	return all, nil
}
