package main

import (
	"bufio"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// process is a contender, or the load, as a process of its own. It ends with this one.
type process struct {
	name string
	pid  int
	dir  string // of its own, removed when it is stopped; or ""
	proc *os.Process

	in  io.WriteCloser
	out *gob.Decoder

	ready  chan time.Time // gets when it began to work, by its log
	exited chan struct{}  // closed once it has been reaped
	err    error          // how it ended; to be read after exited
	end    sync.Once

	mu    sync.Mutex
	lines []string // the end of its log
}

// begun are the messages in a log that say that work begins.
func begun(message string) bool { return message == "lease acquired" || message == "started" }

// startProcess starts a program. What it writes to standard error is taken for a log of JSON lines.
func startProcess(name, program string, args ...string) (*process, error) {
	p := &process{name: name, ready: make(chan time.Time, 1), exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Linux kills the child when the *thread* that started it ends: this one is kept till then.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := exec.Command(program, args...)
		cmd.Env = environment(os.Environ())
		cmd.SysProcAttr = attributes()
		var pipes [3]error
		var out, log io.ReadCloser
		p.in, pipes[0] = cmd.StdinPipe()
		out, pipes[1] = cmd.StdoutPipe()
		log, pipes[2] = cmd.StderrPipe()
		err := errors.Join(pipes[:]...)
		if err == nil {
			p.out = gob.NewDecoder(out)
			err = cmd.Start()
		}
		if err != nil {
			started <- fmt.Errorf("start %s: %w", name, err)
			return
		}
		p.pid, p.proc = cmd.Process.Pid, cmd.Process
		started <- nil
		p.watch(log)
		p.err = cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// environment leaves out what would win over what a contender is told: a person who measures may have an
// outbox of their own.
func environment(environ []string) []string {
	return slices.DeleteFunc(environ, func(variable string) bool {
		return strings.HasPrefix(variable, "OUTBOX_") || strings.HasPrefix(variable, "DATABASE_URL=")
	})
}

// watch reads the log to its end.
func (p *process) watch(log io.Reader) {
	const kept = 20
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var line struct {
			Msg  string    `json:"msg"`
			Time time.Time `json:"time"`
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && begun(line.Msg) {
			select {
			case p.ready <- line.Time:
			default:
			}
		}
		p.mu.Lock()
		if p.lines = append(p.lines, lines.Text()); len(p.lines) > kept {
			p.lines = p.lines[1:]
		}
		p.mu.Unlock()
	}
}

// ended returns an error if the process has ended by itself.
func (p *process) ended() error {
	select {
	case <-p.exited:
		return p.failure(errors.New("it ended too early"))
	default:
		return nil
	}
}

// failure adds the end of the log to an error.
func (p *process) failure(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lines) == 0 {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return fmt.Errorf("%s: %w; its log ends with:\n%s", p.name, err, strings.Join(p.lines, "\n"))
}

// cpuNow is the CPU time that the process has used so far, in seconds.
func (p *process) cpuNow() float64 {
	_, seconds := processStat(p.pid)
	return seconds
}

// stop ends the process in good order, or otherwise if that takes long.
func (p *process) stop() {
	p.end.Do(func() {
		terminate(p.proc)
		patience := time.AfterFunc(20*time.Second, func() { _ = p.proc.Kill() })
		defer patience.Stop()
		<-p.exited
		if p.dir != "" {
			_ = os.RemoveAll(p.dir) // a small file in the temporary folder
		}
	})
}
