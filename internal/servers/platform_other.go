//go:build !unix

package servers

import (
	"errors"
	"runtime"
	"syscall"
)

// Never sent: nothing is started here.
const (
	sigStop = syscall.Signal(0x13)
	sigCont = syscall.Signal(0x12)
)

func canStart() error {
	return errors.New("servers can't be started on " + runtime.GOOS + ": run them yourself and give their addresses in " +
		envPostgres + ", " + envKafka + " and " + envNATS)
}

func attributes(int, syscall.Signal) *syscall.SysProcAttr { return nil }

func send(int, syscall.Signal) error { return canStart() }

func alive(int) bool { return true } // so that sweep leaves everything alone

func parents() (map[int]int, error) { return nil, canStart() }

func halted(int) bool { return true }
