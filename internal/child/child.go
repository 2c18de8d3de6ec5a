// Package child runs programs as child processes. They die with this process, can be stopped, killed, frozen and
// thawed, and their output and exit are kept.
package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Command is a program with its arguments and environment.
type Command struct {
	Path string
	Args []string
	Env  []string // default: this process's
	Dir  string   // default: this process's
	UID  int      // the user and the group that it runs as. Default: this process's
	Root string   // the folder that it sees as /, in which Path and Dir are then. Default: this process's. It takes root

	// LogFile is the file that standard output and standard error are appended to.
	LogFile string

	// Piped connects Process.In and Process.Out to standard input and output. Standard error goes to the log.
	Piped bool

	// OnDeath is the signal that the child gets when this process dies. Default: SIGKILL.
	OnDeath syscall.Signal
}

// Process is one run of a command. It dies with this process, however that ends, and is out of reach of Ctrl-C. Its
// methods may be called from several goroutines.
type Process struct {
	In  io.WriteCloser // of a piped command
	Out io.ReadCloser

	log    string
	from   int64 // where the log of this run begins
	main   *os.Process
	exited chan struct{}
	err    error // to be read after exited

	mu     sync.Mutex
	frozen []int
}

// Start starts a command.
func Start(c Command) (*Process, error) {
	if c.OnDeath == 0 {
		c.OnDeath = syscall.SIGKILL
	}
	log, err := os.OpenFile(c.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	p := &Process{log: c.LogFile, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Linux sends the parent-death signal when the thread that started the child ends, so this thread is kept
		// until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		cmd := exec.Command(c.Path, c.Args...)
		unguard, err := p.start(c, cmd, log)
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		unguard()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	return p, nil
}

// start starts cmd on the thread that will wait for it.
func (p *Process) start(c Command, cmd *exec.Cmd, log *os.File) (unguard func(), err error) {
	if p.from, err = log.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	cmd.Dir, cmd.Env, cmd.SysProcAttr = c.Dir, c.Env, attributes(c, c.OnDeath)
	cmd.Stdout, cmd.Stderr = log, log
	if c.Piped {
		cmd.Stdout = nil
		var inErr, outErr error
		p.In, inErr = cmd.StdinPipe()
		p.Out, outErr = cmd.StdoutPipe()
		if err := errors.Join(inErr, outErr); err != nil {
			return nil, err
		}
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.main = cmd.Process
	if unguard, err = endWithParent(cmd.Process.Pid, c.OnDeath); err != nil {
		err = errors.Join(err, cmd.Process.Kill())
		_ = cmd.Wait() // killed
		return nil, err
	}
	return unguard, nil
}

// Run runs a command that ends by itself, without a log: the error of one that fails holds what it wrote. The end of
// ctx kills it.
func Run(ctx context.Context, c Command) error {
	// The thread is kept for the same reason as in Start.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = c.Dir, c.Env, attributes(c, syscall.SIGKILL)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", c.Path, err, out)
	}
	return nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.main.Pid }

// Exited is closed when the process has ended and been reaped.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Running reports whether the process exists, frozen or not.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Err returns how the process has ended: nil if its exit code was 0, else an *exec.ExitError. It is nil while the
// process runs.
func (p *Process) Err() error {
	if p.Running() {
		return nil
	}
	return p.err
}

// Wait waits for the process to end, at most so long, and reports whether it has.
func (p *Process) Wait(patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
		return false
	}
}

// Signal sends a signal to the process itself, and nothing to one that has ended.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.main.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to process %d: %w", s, p.PID(), err)
	}
	return nil
}

// Stop has the process end by a signal, thawed if need be, and kills one that still runs after patience. It reports
// whether the process ended by itself. On a system without signals it kills at once.
func (p *Process) Stop(s syscall.Signal, patience time.Duration) (byItself bool, err error) {
	if !Signals {
		return false, p.Kill()
	}
	if err := errors.Join(p.Thaw(), p.Signal(s)); err != nil {
		return false, errors.Join(err, p.Kill())
	}
	if p.Wait(patience) {
		return true, nil
	}
	return false, p.Kill()
}

// Log returns the end of what has been written to the log, by earlier runs too.
func (p *Process) Log() string { return Tail(p.log) }

// Life returns what this run has written to its log, at most 1 MiB.
func (p *Process) Life() ([]byte, error) {
	file, err := os.Open(p.log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.NewSectionReader(file, p.from, 1<<20))
}

// Tail returns the end of a log, at most 4,000 bytes. A log that can't be read has none.
func Tail(path string) string {
	const size = 4000
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > size {
		if _, err := file.Seek(-size, io.SeekEnd); err != nil {
			return ""
		}
	}
	end, err := io.ReadAll(io.LimitReader(file, size))
	if err != nil {
		return ""
	}
	return string(end)
}
