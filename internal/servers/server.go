package servers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/pgoutbox/outbox/internal/child"
)

// Server is what [Postgres], [Kafka] and [NATS] have in common. Its methods may be called from several goroutines; they
// wait for each other.
type Server struct {
	name  string // PostgreSQL 18.6
	addr  string
	given string // the environment variable that the address comes from: there is nothing to start or kill then

	folder  string // log and data
	command func() child.Command
	ready   func(context.Context) error // one attempt
	stopSig syscall.Signal              // ends it in an orderly way

	mu      sync.Mutex
	process *child.Process // nil until started and after Close
	closed  bool
}

// canStart is nil where servers can be started.
func canStart() error {
	if child.Signals {
		return nil
	}
	return errors.New("servers can't be started on " + runtime.GOOS + ": run them yourself and give their addresses in " +
		envPostgres + ", " + envKafka + " and " + envNATS)
}

// startTimeout is how long a server may take until it answers. Kafka needs 12 s after a kill on a busy machine.
const startTimeout = 90 * time.Second

// stopTimeout is how long a server may take to stop in an orderly way.
const stopTimeout = 30 * time.Second

// Addr returns host:port; for brokers from the environment, what stands there.
func (s *Server) Addr() string { return s.addr }

// Port returns the port of Addr, and 0 if the address from the environment has none.
func (s *Server) Port() int {
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(port)
	return n
}

// Log returns the end of what the server has written; nothing for one from the environment.
func (s *Server) Log() string {
	if s.given != "" {
		return ""
	}
	return child.Tail(s.logFile())
}

func (s *Server) logFile() string { return filepath.Join(s.folder, "server.log") }

// Running tells whether the server's process exists, frozen or not.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process != nil && s.process.Running()
}

// Stop ends the server in an orderly way, without waiting for its clients. The data stays for Restart. A server that
// has ended already is fine.
func (s *Server) Stop() error {
	if err := s.lock("stop"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := s.stop(s.stopSig); err != nil {
		return fmt.Errorf("stop %s: %w", s.name, err)
	}
	return nil
}

// Kill9 ends the server and all its children by SIGKILL, as when memory runs out, and returns when they are gone. The
// data stays for Restart.
func (s *Server) Kill9() error {
	if err := s.lock("kill"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := s.process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", s.name, err)
	}
	return nil
}

// Restart starts the server on the same port with the same data and returns when it answers. One that runs is stopped
// first, as by Stop.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.lock("restart"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := s.stop(s.stopSig); err != nil {
		return fmt.Errorf("restart %s: stop: %w", s.name, err)
	}
	if err := s.start(ctx); err != nil {
		return fmt.Errorf("restart %s: %w", s.name, err)
	}
	return nil
}

// Freeze halts the server with all its children, by SIGSTOP: its connections stay open and nothing answers, as when
// the network swallows packets or the machine swaps.
func (s *Server) Freeze() error {
	if err := s.lock("freeze"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := s.process.Freeze(); err != nil {
		return fmt.Errorf("freeze %s: %w", s.name, err)
	}
	return nil
}

// Thaw lets a frozen server go on.
func (s *Server) Thaw() error {
	if err := s.lock("thaw"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := s.process.Thaw(); err != nil {
		return fmt.Errorf("thaw %s: %w", s.name, err)
	}
	return nil
}

// Close ends the server and removes its data. A server from the environment is left alone. A second Close does nothing.
func (s *Server) Close() error {
	return s.close(func() error { return nil })
}

// close is Close, with something to do before the process is killed.
func (s *Server) close(before func() error) error {
	if s.given != "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	// The data goes away, so there is nothing to be orderly about.
	err := errors.Join(before(), s.kill(), os.RemoveAll(s.folder))
	s.process = nil
	if err != nil {
		return fmt.Errorf("close %s: %w", s.name, err)
	}
	return nil
}

// lock locks s.mu if there is a process to do something to.
func (s *Server) lock(verb string) error {
	if s.given != "" {
		return fmt.Errorf("can't %s %s: it was given by %s; unset that, or have the test use a server of its own", verb, s.name, s.given)
	}
	s.mu.Lock()
	if s.closed || s.process == nil {
		s.mu.Unlock()
		return fmt.Errorf("can't %s %s: it has been closed", verb, s.name)
	}
	return nil
}

func (s *Server) stop(sig syscall.Signal) error {
	byItself, err := s.process.Stop(sig, stopTimeout)
	if err != nil || byItself {
		return err
	}
	return fmt.Errorf("%s after %v it still ran, and has been killed; its log ends with:\n%s", stopTimeout, sig, s.process.Log())
}

func (s *Server) kill() error {
	if s.process == nil {
		return nil
	}
	return s.process.Kill()
}

// start starts the process and waits until it answers. If that fails, nothing runs.
func (s *Server) start(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c := s.command()
	c.LogFile = s.logFile()
	if s.process, err = child.Start(c); err != nil {
		return err
	}
	if err := s.answers(ctx); err != nil {
		return errors.Join(fmt.Errorf("%w; its log ends with:\n%s", err, s.process.Log()), s.kill())
	}
	return nil
}

// answers waits until ready succeeds.
func (s *Server) answers(ctx context.Context) error {
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.process.Exited():
			return errors.New("it ended while it started")
		case <-ctx.Done():
			return fmt.Errorf("it doesn't answer: %w (%w)", ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}

// startFirst is start for a new server. Between the choice of a free port and its use, somebody else may take it:
// then again with another one. prepare, called before each attempt, gets the ports.
func (s *Server) startFirst(ctx context.Context, ports int, prepare func(ports []int) error) error {
	for attempt := 1; ; attempt++ {
		free, err := freePorts(ports)
		if err != nil {
			return err
		}
		s.addr = loopback(free[0])
		if err := prepare(free); err != nil {
			return err
		}
		if err = s.start(ctx); err == nil {
			return nil
		}
		if attempt == 3 || ctx.Err() != nil || allFree(free) {
			return err
		}
	}
}

// launch starts a new server of a kind in a folder of its own, as a process that ends by SIGTERM. run is what it runs, with
// the environment of this process unless it has one. prepare, called before each attempt, gets the ports. After an error
// nothing is left.
func (s *Server) launch(ctx context.Context, name, kind string, ports int, prepare func(ports []int) error, run func() child.Command) (err error) {
	s.name, s.stopSig = name, syscall.SIGTERM
	if s.folder, err = newFolder(kind, 0); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	s.command = func() child.Command {
		c := run()
		c.Dir = s.folder
		return c
	}
	if err := s.startFirst(ctx, ports, prepare); err != nil {
		return fmt.Errorf("start %s: %w", name, errors.Join(err, s.Close()))
	}
	return nil
}

// pageAnswers returns nil if there is a page at url, which only the server of that name has.
func pageAnswers(ctx context.Context, name, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: not %s, or it doesn't work", url, response.Status, name)
	}
	return nil
}

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// freePorts returns ports that are free. They are below those that the system hands out by itself, for a
// connection that leaves from a server's port while the server is down would keep it from coming back.
func freePorts(n int) ([]int, error) {
	const first, past = 20000, 32000
	var ports []int
	for range 1000 {
		port := first + rand.IntN(past-first)
		listener, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		defer listener.Close() // so that the next one differs
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports from %d to %d on 127.0.0.1", n, first, past-1)
}

func allFree(ports []int) bool {
	for _, port := range ports {
		listener, err := net.Listen("tcp", loopback(port))
		if err != nil {
			return false
		}
		listener.Close()
	}
	return true
}
