package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// nobody is the user and the group that root's PostgreSQL runs as.
const nobody = 65534

// command is what a process runs.
type command struct {
	path string
	args []string
	env  []string
	dir  string
	log  string // file that output is appended to
	uid  int    // 0: this process's

	onDeath syscall.Signal // what the process gets when this one dies
}

// process is one run of a command. It dies with this process.
type process struct {
	pid    int
	exited chan struct{} // closed once it has ended and been reaped
}

// begin starts a command.
func begin(c command) (*process, error) {
	if err := canStart(); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	p := &process{exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The parent-death signal comes when the *thread* that started the child ends. This one is ours until the
		// child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()

		cmd := exec.Command(c.path, c.args...)
		cmd.Dir = c.dir
		cmd.Env = c.env
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = attributes(c.uid, c.onDeath)
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		unwatch := func() {}
		if runtime.GOOS != "linux" {
			if unwatch, err = watch(cmd.Process.Pid, c.onDeath); err != nil {
				cmd.Process.Kill()
				cmd.Wait()
				started <- err
				return
			}
		}
		p.pid = cmd.Process.Pid
		started <- nil
		cmd.Wait() // how it ended is in its log
		unwatch()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// watch starts a shell that sends sig to pid when this process dies: it reads from a pipe whose other end only this
// process has, and which the system closes. unwatch ends it without a signal.
func watch(pid int, sig syscall.Signal) (unwatch func(), err error) {
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	shell, err := startWatcher(in, pid, sig)
	if err != nil {
		out.Close()
		return nil, err
	}
	return func() {
		shell.Process.Kill() // before the pipe closes: pid may be another process by now
		shell.Wait()
		out.Close()
	}, nil
}

func startWatcher(in *os.File, pid int, sig syscall.Signal) (*exec.Cmd, error) {
	target := strconv.Itoa(pid)
	// SIGCONT, for a frozen process takes no other signal.
	shell := exec.Command("/bin/sh", "-c", "read -r _; kill -"+strconv.Itoa(int(sig))+" "+target+"; kill -CONT "+target)
	shell.Stdin = in
	shell.SysProcAttr = attributes(0, 0)
	return shell, shell.Start()
}

// runToEnd runs a command that ends by itself. The error of one that fails holds what it wrote.
func runToEnd(ctx context.Context, path string, args, env []string, uid int) error {
	if err := canStart(); err != nil {
		return err
	}
	// The thread is locked for the same reason as in begin.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = env
	cmd.Dir = os.TempDir() // the current folder may be closed to uid
	cmd.SysProcAttr = attributes(uid, syscall.SIGKILL)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", path, err, out)
	}
	return nil
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// signal sends sig to the process itself.
func (p *process) signal(sig syscall.Signal) error {
	if !p.running() {
		return nil
	}
	return send(p.pid, sig)
}

// wait returns whether the process has ended within d.
func (p *process) wait(d time.Duration) bool {
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	select {
	case <-p.exited:
		return true
	case <-timeout.C:
		return false
	}
}

// freeze stops the process and all that descends from it. Signalling the process group isn't enough: PostgreSQL gives
// each of its processes a session of its own.
func (p *process) freeze() ([]int, error) {
	if !p.running() {
		return nil, errors.New("the process has ended")
	}
	if err := send(p.pid, sigStop); err != nil {
		return nil, err
	}
	// A process that was forking as the signal came has one child more than the first look shows.
	stopped := []int{p.pid}
	for {
		all, err := descendants(p.pid)
		if err != nil {
			return stopped, err
		}
		fresh := slices.DeleteFunc(all, func(pid int) bool { return slices.Contains(stopped, pid) })
		if len(fresh) == 0 {
			return stopped, p.awaitHalt(stopped)
		}
		for _, pid := range fresh {
			if err := send(pid, sigStop); err != nil {
				return stopped, err
			}
		}
		stopped = append(stopped, fresh...)
	}
}

// awaitHalt waits until processes have come to a halt. On a busy machine threads run on for a while, until the one that
// takes the signal has had its turn.
func (p *process) awaitHalt(pids []int) error {
	deadline := time.Now().Add(10 * time.Second)
	for _, pid := range pids {
		for !halted(pid) {
			if time.Now().After(deadline) {
				return fmt.Errorf("process %d runs 10 s after SIGSTOP", pid)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

func thaw(pids []int) error {
	var errs []error
	for _, pid := range slices.Backward(pids) { // children first, so that they are there when their parent calls
		errs = append(errs, send(pid, sigCont))
	}
	return errors.Join(errs...)
}

// kill ends the process and all that descends from it by SIGKILL, and returns when they are gone.
func (p *process) kill() error {
	if !p.running() {
		return nil
	}
	pids, err := p.freeze() // so that none forks while it is looked at
	if err != nil && p.running() {
		return errors.Join(err, send(p.pid, syscall.SIGKILL))
	}
	for _, pid := range pids {
		if err := send(pid, syscall.SIGKILL); err != nil {
			return err
		}
	}
	if !p.wait(10 * time.Second) {
		return fmt.Errorf("process %d is there 10 s after SIGKILL", p.pid)
	}
	deadline := time.Now().Add(10 * time.Second)
	for _, pid := range pids {
		for alive(pid) {
			if time.Now().After(deadline) {
				return fmt.Errorf("process %d is there 10 s after SIGKILL", pid)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// descendants lists the children of a process, their children and so on.
func descendants(pid int) ([]int, error) {
	parent, err := parents()
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for child, of := range parent {
		children[of] = append(children[of], child)
	}
	var all []int
	for next := children[pid]; len(next) > 0; {
		all = append(all, next...)
		var deeper []int
		for _, child := range next {
			deeper = append(deeper, children[child]...)
		}
		next = deeper
	}
	return all, nil
}

// tail returns the end of a log.
func tail(path string) string {
	const size = 4000
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > size {
		file.Seek(-size, io.SeekEnd)
	}
	end, err := io.ReadAll(io.LimitReader(file, size))
	if err != nil {
		return ""
	}
	return string(end)
}
