package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pgoutbox/outbox/internal/child"
)

// Server has the methods that [Postgres], [Kafka] and [NATS] share. They may be called from several goroutines, and
// wait for each other.
type Server struct {
	kind
	addr  string
	ports []int  // the first is that of addr
	given string // the environment variable that the address comes from: there is nothing to start or kill then
	url   string // as it stands in the environment

	folder string // log and data

	mu      sync.Mutex
	process *child.Process // nil until started and after Close
	closed  bool
}

// kind describes servers of a kind: the program, and how to ask whether one works.
type kind struct {
	name    string // PostgreSQL 18.6
	free    int    // how many ports it needs. Default: 1
	uid     int    // the user that it runs as, and that owns its folder. Default: this process's
	storage string // where its folder is. Default: where temporary files are

	// place writes what the server reads, before each attempt to start it at other ports. Default: nothing.
	place func() error
	// command is run in the server's folder, as its user.
	command func() child.Command
	// ready is one attempt to be answered.
	ready func(ctx context.Context, addr string) error
	// stopSig ends it in an orderly way. Default: SIGTERM.
	stopSig syscall.Signal
	// closing is done before it is killed for good. Default: nothing.
	closing func() error
}

// startTimeout is how long a server may take to start, and startQuiet how long it may write nothing meanwhile without
// answering: on a busy machine it takes its time, and Kafka needs 12 s after a kill.
const startTimeout, startQuiet = 6 * time.Minute, 90 * time.Second

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
	return child.Tail(s.LogFile())
}

// LogFile is the file of all that the server has written; "" for one from the environment.
func (s *Server) LogFile() string {
	if s.given != "" {
		return ""
	}
	return filepath.Join(s.folder, "server.log")
}

// Running tells whether the server's process exists, frozen or not.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process != nil && s.process.Running()
}

// Stop ends the server in an orderly way, without waiting for its clients. The data stays for Restart. A server that
// has ended already is fine.
func (s *Server) Stop() error {
	return s.do("stop", func() error { return s.stop(s.stopSig) })
}

// Kill9 ends the server and all its children by SIGKILL, as when memory runs out, and returns when they are gone. The
// data stays for Restart.
func (s *Server) Kill9() error {
	return s.do("kill", func() error { return s.process.Kill() })
}

// Restart starts the server on the same port with the same data and returns when it answers. One that runs is stopped
// first, as by Stop.
func (s *Server) Restart(ctx context.Context) error {
	return s.do("restart", func() error {
		if err := s.stop(s.stopSig); err != nil {
			return fmt.Errorf("stop: %w", err)
		}
		return s.start(ctx)
	})
}

// Freeze halts the server with all its children, by SIGSTOP: its connections stay open and nothing answers, as when
// the network swallows packets or the machine swaps.
func (s *Server) Freeze() error {
	return s.do("freeze", func() error { return s.process.Freeze() })
}

// Thaw lets a frozen server go on.
func (s *Server) Thaw() error {
	return s.do("thaw", func() error { return s.process.Thaw() })
}

// Close ends the server and removes its data. A server from the environment is left alone. A second Close does nothing.
func (s *Server) Close() error {
	if s.given != "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.folder == "" {
		return nil
	}
	s.closed = true
	// The data goes away, so there is nothing to be orderly about.
	var errs []error
	if s.closing != nil {
		errs = append(errs, s.closing())
	}
	if s.process != nil {
		errs = append(errs, s.process.Kill())
	}
	s.process = nil
	if err := errors.Join(append(errs, os.RemoveAll(s.folder))...); err != nil {
		return fmt.Errorf("close %s: %w", s.name, err)
	}
	return nil
}

func (s *Server) server() *Server { return s }

// do does something to the process, if there is one.
func (s *Server) do(verb string, something func() error) error {
	if s.given != "" {
		return fmt.Errorf("can't %s %s: it was given by %s; unset that, or have the test use a server of its own", verb, s.name, s.given)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.process == nil {
		return fmt.Errorf("can't %s %s: it has been closed", verb, s.name)
	}
	if err := something(); err != nil {
		return fmt.Errorf("%s %s: %w", verb, s.name, err)
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

// launch starts a server of a kind, in a folder of its own, and returns when it answers. found is the error of looking
// for what it runs. After an error nothing is left.
func (s *Server) launch(ctx context.Context, found error, k kind) (err error) {
	if !child.Signals {
		return errors.New("servers can't be started on " + runtime.GOOS + ": run them yourself and give their addresses in " +
			envPostgres + ", " + envKafka + " and " + envNATS)
	}
	if found != nil {
		return found
	}
	k.free, k.stopSig = max(k.free, 1), cmp.Or(k.stopSig, syscall.SIGTERM)
	s.kind = k
	word, _, _ := strings.Cut(strings.ToLower(k.name), " ")
	if s.folder, err = newFolder(k.storage, word, k.uid); err == nil {
		err = s.startAnywhere(ctx)
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", s.name, errors.Join(AdviseLibrary(err), s.Close()))
	}
	return nil
}

// AdviseLibrary adds to the error of a program that lacks a shared library what to install.
func AdviseLibrary(err error) error {
	if strings.Contains(err.Error(), "error while loading shared libraries") { // the words of Linux's loader
		err = fmt.Errorf("%w\ninstall the library that is missing: libstdc++.so.6 is in Debian's package libstdc++6", err)
	}
	return err
}

// orNone returns a server that was launched, nil after an error.
func orNone[S any](server *S, err error) (*S, error) {
	if err != nil {
		return nil, err
	}
	return server, nil
}

// startAnywhere starts a new server. Between the choice of a free port and its use, somebody else may take it: then
// again with another one.
func (s *Server) startAnywhere(ctx context.Context) (err error) {
	for attempt := 1; ; attempt++ {
		if s.ports, err = freePorts(s.free); err != nil {
			return err
		}
		s.addr = loopback(s.ports[0])
		if s.place != nil {
			if err := s.place(); err != nil {
				return err
			}
		}
		if err = s.start(ctx); err == nil || attempt == 3 || ctx.Err() != nil || allFree(s.ports) {
			return err
		}
	}
}

// start starts the process and waits until it answers. If that fails, nothing runs.
func (s *Server) start(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c := s.command()
	c.LogFile, c.Dir, c.UID = s.LogFile(), s.folder, s.uid
	if s.process, err = child.Start(c); err != nil {
		return err
	}
	if err := s.answers(ctx); err != nil {
		return errors.Join(fmt.Errorf("%w; its log ends with:\n%s", err, s.process.Log()), s.process.Kill())
	}
	return nil
}

// answers waits until the server answers, as long as it lives and writes something now and then.
func (s *Server) answers(ctx context.Context) error {
	written, since := int64(0), time.Now()
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := s.ready(ctx, s.addr)
		if err == nil {
			return nil
		}
		if log, err := os.Stat(s.LogFile()); err == nil && log.Size() > written {
			written, since = log.Size(), time.Now()
		}
		if time.Since(since) > startQuiet {
			return fmt.Errorf("it doesn't answer, and has written nothing for %v: %w", startQuiet, err)
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

// askWithin is how long one attempt to be answered may take.
const askWithin = 5 * time.Second

// dial opens a connection on which a server is to answer.
func dial(ctx context.Context, addr string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(askWithin))
}

// answersHTTP returns nil if a request succeeds.
func answersHTTP(ctx context.Context, method, url, body string, header http.Header) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	maps.Copy(request.Header, header)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return fmt.Errorf("%s answers with %s: %s", url, response.Status, text)
	}
	return nil
}

// settings returns a line for each setting, sorted. The later map wins.
func settings(format string, all ...map[string]string) string {
	merged := map[string]string{}
	for _, more := range all {
		maps.Copy(merged, more)
	}
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(merged)) {
		fmt.Fprintf(&lines, format+"\n", name, merged[name])
	}
	return lines.String()
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
