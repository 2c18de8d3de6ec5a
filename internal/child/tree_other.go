//go:build !unix

package child

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

// Signals reports whether this system has signals. Without them a process can only be killed, and not frozen.
const Signals = false

// Freeze halts the process where there are signals.
func (p *Process) Freeze() error {
	return errors.New("processes can't be frozen on " + runtime.GOOS)
}

// Thaw lets a frozen process go on: there is none here.
func (p *Process) Thaw() error { return nil }

// Kill ends the process, and returns when it is gone.
func (p *Process) Kill() error {
	if err := p.main.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.exited
	return nil
}

// Alive reports whether a process runs. All do, so that Sweep leaves everything alone.
func Alive(int) bool { return true }

// Descendants lists the children of a process, their children and so on, where that is known.
func Descendants(int) ([]int, error) {
	return nil, errors.New("the children of processes aren't known on " + runtime.GOOS)
}

func attributes(Command, syscall.Signal) *syscall.SysProcAttr { return nil }

func endWithParent(int, syscall.Signal) (unguard func(), err error) { return func() {}, nil }
