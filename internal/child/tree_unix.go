//go:build unix

package child

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// Signals reports whether this system has signals. Without them a process can only be killed, and not frozen.
const Signals = true

// patience is how long the system may take to halt or to end a process.
const patience = 30 * time.Second

// Freeze halts the process and all that descends from it, by SIGSTOP, until Thaw. One that is frozen stays so.
func (p *Process) Freeze() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		return nil
	}
	return p.freeze()
}

// freeze signals each process. Signalling the process group isn't enough: PostgreSQL gives each of its processes a
// session of its own. The caller holds the lock.
func (p *Process) freeze() error {
	if !p.Running() {
		return errors.New("the process has ended")
	}
	if err := send(p.PID(), syscall.SIGSTOP); err != nil {
		return err
	}
	// A process that was forking as the signal came has one child more than the first look shows.
	p.frozen = []int{p.PID()}
	for {
		all, err := Descendants(p.PID())
		if err != nil {
			return errors.Join(err, p.thaw())
		}
		fresh := slices.DeleteFunc(all, func(pid int) bool { return slices.Contains(p.frozen, pid) })
		if len(fresh) == 0 {
			break
		}
		for _, pid := range fresh {
			if err := send(pid, syscall.SIGSTOP); err != nil {
				return errors.Join(err, p.thaw())
			}
		}
		p.frozen = append(p.frozen, fresh...)
	}
	// On a busy machine threads run on for a while, until the one that takes the signal has had its turn.
	if err := await(p.frozen, "runs", syscall.SIGSTOP, halted); err != nil {
		return errors.Join(err, p.thaw())
	}
	return nil
}

// Thaw lets a frozen process go on.
func (p *Process) Thaw() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.thaw()
}

func (p *Process) thaw() error {
	var errs []error
	for _, pid := range slices.Backward(p.frozen) { // children first, so that they are there when their parent calls
		errs = append(errs, send(pid, syscall.SIGCONT))
	}
	p.frozen = nil
	return errors.Join(errs...)
}

// Kill ends the process and all that descends from it by SIGKILL, frozen or not, as when memory runs out, and returns
// when they are gone.
func (p *Process) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Running() {
		return nil
	}
	if err := p.freeze(); err != nil && p.Running() { // so that none forks while it is looked at
		return errors.Join(err, send(p.PID(), syscall.SIGKILL))
	}
	all := p.frozen
	p.frozen = nil
	for _, pid := range all {
		if err := send(pid, syscall.SIGKILL); err != nil {
			return err
		}
	}
	if !p.Wait(patience) {
		return fmt.Errorf("process %d is there %v after SIGKILL", p.PID(), patience)
	}
	return await(all, "is there", syscall.SIGKILL, func(pid int) bool { return !Alive(pid) })
}

// await waits until processes are as a signal makes them.
func await(pids []int, otherwise string, sent syscall.Signal, done func(pid int) bool) error {
	deadline := time.Now().Add(patience)
	for _, pid := range pids {
		for !done(pid) {
			if time.Now().After(deadline) {
				return fmt.Errorf("process %d %s %v after signal %q", pid, otherwise, patience, sent)
			}
			time.Sleep(time.Millisecond) // the system tells a process's parent alone
		}
	}
	return nil
}

func send(pid int, s syscall.Signal) error {
	err := syscall.Kill(pid, s)
	if errors.Is(err, syscall.ESRCH) {
		return nil // gone: whatever was meant to be done to it is moot
	}
	return err
}

// Alive reports whether a process runs. A zombie doesn't.
func Alive(pid int) bool {
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) && !zombie(pid)
}

// Descendants lists the children of a process, their children and so on.
func Descendants(pid int) ([]int, error) {
	parent, err := parents()
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for child, of := range parent {
		children[of] = append(children[of], child)
	}
	all := slices.Clone(children[pid])
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all, nil
}

func credential(uid int) *syscall.Credential {
	if uid == 0 {
		return nil
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
}
