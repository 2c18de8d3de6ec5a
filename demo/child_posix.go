//go:build unix

package main

import (
	"errors"
	"os"
	"syscall"
)

// guardAttributes are those of a process that outlives this one.
func guardAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func terminate(p *os.Process) error { return p.Signal(syscall.SIGTERM) }

// gone tells whether there is no such process.
func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
