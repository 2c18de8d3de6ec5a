package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// child is one run of a command. It dies with this process, however that ends.
type child struct {
	pid    int
	exited chan struct{} // closed once it has ended and been reaped
	err    error         // how it ended; to be read after exited

	process *os.Process
}

// startChild starts a command whose output is appended to the file log.
func startChild(args []string, log string) (*child, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	c := &child{exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Linux sends the parent-death signal when the *thread* that started the child ends: this one is kept till then.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer out.Close()
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr = out, out
		cmd.SysProcAttr = childAttributes()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		unwatch, err := watchParent(cmd.Process.Pid)
		if err != nil {
			err = errors.Join(err, cmd.Process.Kill())
			_ = cmd.Wait()
			started <- err
			return
		}
		c.pid, c.process = cmd.Process.Pid, cmd.Process
		started <- nil
		c.err = cmd.Wait()
		unwatch()
		close(c.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	return c, nil
}

// kill ends the child at once, without a chance to do anything about it, and returns when it is gone.
func (c *child) kill() error {
	if err := c.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-c.exited
	return nil
}

// stop asks the child to end and kills it when it hasn't after patience. It returns whether it ended by itself.
func (c *child) stop(patience time.Duration) (bool, error) {
	if err := terminate(c.process); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return false, err
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.exited:
		return true, nil
	case <-timer.C:
		return false, c.kill()
	}
}

func (c *child) running() bool {
	select {
	case <-c.exited:
		return false
	default:
		return true
	}
}

// lastLines returns the end of a log.
func lastLines(path string, n int) string {
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
	lines := strings.Split(string(bytes.TrimSpace(end)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
