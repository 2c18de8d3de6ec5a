package rig

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Child is a process of its own, which dies with this one. What it writes to standard error is kept in a log, and to
// standard output as well unless it is piped. Its methods may be called from several goroutines.
type Child struct {
	Name    string
	Program string
	Args    []string
	LogFile string // appended to

	// Piped connects In and Out to the child's standard input and output.
	Piped bool
	In    io.WriteCloser
	Out   io.ReadCloser

	mu      sync.Mutex
	from    int64 // where the log of this life begins
	process *os.Process
	exited  chan struct{}
	state   *os.ProcessState // to be read after exited
}

// Start starts the process, the first time or again after its end.
func (c *Child) Start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	log, err := os.OpenFile(c.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if c.from, err = log.Seek(0, io.SeekEnd); err != nil {
		return errors.Join(err, log.Close())
	}
	exited := make(chan struct{})
	started := make(chan error)
	go func() {
		// The parent-death signal comes when the thread that started the child ends: this one is kept till then.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		cmd := exec.Command(c.Program, c.Args...)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.Env = environment(os.Environ())
		cmd.SysProcAttr = childAttributes()
		var err error
		if c.Piped {
			var outErr error
			cmd.Stdout = nil
			c.In, err = cmd.StdinPipe()
			c.Out, outErr = cmd.StdoutPipe()
			err = errors.Join(err, outErr)
		}
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			started <- err
			return
		}
		c.process, c.exited = cmd.Process, exited
		started <- nil
		_ = cmd.Wait() // killed, mostly
		c.state = cmd.ProcessState
		close(exited)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start process %s: %w", c.Name, err)
	}
	return nil
}

// environment leaves out what would win over what a child is told: the person who tests may have an outbox of their own.
func environment(environ []string) []string {
	return slices.DeleteFunc(environ, func(variable string) bool {
		return strings.HasPrefix(variable, "OUTBOX_") || strings.HasPrefix(variable, "DATABASE_URL=")
	})
}

// Life is what the child has written since it was started last.
func (c *Child) Life() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	file, err := os.Open(c.LogFile)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.NewSectionReader(file, c.from, 1<<20))
}

func (c *Child) current() (*os.Process, chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.process, c.exited
}

// PID is the process's id.
func (c *Child) PID() int {
	process, _ := c.current()
	return process.Pid
}

// Signal sends a signal to a process that still runs.
func (c *Child) Signal(s syscall.Signal) error {
	process, _ := c.current()
	if err := process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal process %s: %w", c.Name, err)
	}
	return nil
}

// Kill ends the process by SIGKILL, frozen or not, and returns when it is gone.
func (c *Child) Kill() error {
	if err := c.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	_, exited := c.current()
	<-exited
	return nil
}

// Stop tells the process to end in good order and says what became of it. One that still runs after
// patience is killed.
func (c *Child) Stop(patience time.Duration) error {
	if err := c.Signal(syscall.SIGTERM); err != nil {
		return errors.Join(err, c.Kill())
	}
	return c.Wait(patience)
}

// Wait is what Stop does after the signal.
func (c *Child) Wait(patience time.Duration) error {
	_, exited := c.current()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-exited:
	case <-timeout.C:
		return errors.Join(fmt.Errorf("process %s still runs %v after SIGTERM", c.Name, patience), c.Kill())
	}
	if code := c.state.ExitCode(); code != 0 {
		return fmt.Errorf("process %s ended with code %d after SIGTERM; its log ends with:\n%s", c.Name, code, c.Log())
	}
	return nil
}

// Ended reports whether the process has ended.
func (c *Child) Ended() bool {
	_, exited := c.current()
	select {
	case <-exited:
		return true
	default:
		return false
	}
}

// Exited is closed when the process has ended.
func (c *Child) Exited() <-chan struct{} {
	_, exited := c.current()
	return exited
}

// Log returns the end of what the child has written in all its lives.
func (c *Child) Log() string {
	text, err := os.ReadFile(c.LogFile)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}
