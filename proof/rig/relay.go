package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Relay is an "outbox relay" as a process of its own, which dies with this one. Its methods may be called
// from several goroutines.
type Relay struct {
	Name           string
	binary, config string

	mu      sync.Mutex
	from    int64 // where the log of this life begins
	process *os.Process
	exited  chan struct{}
	state   *os.ProcessState // to be read after exited
}

// StartRelay starts the binary with a configuration, which is kept with the relay's log in dir.
func StartRelay(binary, dir, name, config string) (*Relay, error) {
	r := &Relay{Name: name, binary: binary, config: filepath.Join(dir, name+".yaml")}
	if err := os.WriteFile(r.config, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return r, r.Start()
}

// Start starts the process again after its end.
func (r *Relay) Start() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	log, err := os.OpenFile(r.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if r.from, err = log.Seek(0, io.SeekEnd); err != nil {
		return errors.Join(err, log.Close())
	}
	exited := make(chan struct{})
	started := make(chan error)
	go func() {
		// The parent-death signal comes when the thread that started the child ends: this one is kept till then.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		cmd := exec.Command(r.binary, "relay", "--config", r.config)
		cmd.Stdout, cmd.Stderr = log, log
		// What stands in the environment would win over the file.
		cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "OUTBOX_") })
		cmd.SysProcAttr = childAttributes()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		r.process, r.exited = cmd.Process, exited
		started <- nil
		_ = cmd.Wait() // killed, mostly
		r.state = cmd.ProcessState
		close(exited)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start relay %s: %w", r.Name, err)
	}
	return nil
}

// Up waits until a relay that was started says so. A relay that can't reach the database when it is
// started ends with an error: it is started again then, as a supervisor would.
func (r *Relay) Up(ctx context.Context, within time.Duration) error {
	for deadline := time.Now().Add(within); ; {
		if text, err := r.life(); err != nil || bytes.Contains(text, []byte("relay started")) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("relay %s is not up after %v; its log ends with:\n%s", r.Name, within, r.Log())
		}
		if err := Pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
		if r.Ended() {
			if err := r.Start(); err != nil {
				return err
			}
		}
	}
}

// life is what the relay has written since it was started last.
func (r *Relay) life() ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	file, err := os.Open(r.logFile())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.NewSectionReader(file, r.from, 1<<20))
}

func (r *Relay) current() (*os.Process, chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process, r.exited
}

// PID is the process's id.
func (r *Relay) PID() int {
	process, _ := r.current()
	return process.Pid
}

// Signal sends a signal to a process that still runs.
func (r *Relay) Signal(s syscall.Signal) error {
	process, _ := r.current()
	if err := process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal relay %s: %w", r.Name, err)
	}
	return nil
}

// Kill ends the process by SIGKILL, frozen or not, and returns when it is gone.
func (r *Relay) Kill() error {
	if err := r.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	_, exited := r.current()
	<-exited
	return nil
}

// Stop tells the process to end in good order and says what became of it. One that still runs after
// patience is killed.
func (r *Relay) Stop(patience time.Duration) error {
	if err := r.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return r.Wait(patience)
}

// Wait is what Stop does after the signal.
func (r *Relay) Wait(patience time.Duration) error {
	_, exited := r.current()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-exited:
	case <-timeout.C:
		return errors.Join(fmt.Errorf("relay %s still runs %v after SIGTERM", r.Name, patience), r.Kill())
	}
	if code := r.state.ExitCode(); code != 0 {
		return fmt.Errorf("relay %s ended with code %d after SIGTERM; its log ends with:\n%s", r.Name, code, r.Log())
	}
	return nil
}

// Ended reports whether the process has ended.
func (r *Relay) Ended() bool {
	_, exited := r.current()
	select {
	case <-exited:
		return true
	default:
		return false
	}
}

func (r *Relay) logFile() string { return r.config + ".log" }

// Log returns the end of what the relay has written in all its lives.
func (r *Relay) Log() string {
	text, err := os.ReadFile(r.logFile())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}
