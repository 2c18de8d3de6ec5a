package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/pgoutbox/outbox/internal/printed"
)

// perServer is how many databases of one server are asked at once: fewer than the connections that a server has to
// spare by default, beside those of relays.
const perServer = 32

// server is what databases of one address share: the bound on how many are asked at once. A server that doesn't answer
// for the first of them is asked for no others, which would wait as long.
type server struct {
	address   string
	slots     chan struct{}
	databases int

	mu       sync.Mutex
	answered bool
	silent   int // databases that it didn't answer for
	last     error
}

// serverOf finds the server of a database among those that are known.
func (s *Session) serverOf(known map[string]*server, at Address) *server {
	cfg, err := s.Parse(at)
	if err != nil { // it is said when the database is asked
		return nil
	}
	address := net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
	if known[address] == nil {
		known[address] = &server{address: address, slots: make(chan struct{}, perServer)}
	}
	known[address].databases++
	return known[address]
}

// begin waits until a database may be asked. Each begin without an error has its end.
func (s *server) begin(ctx context.Context) error {
	if s == nil {
		return nil
	}
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.answered && s.silent >= perServer {
		<-s.slots
		return fmt.Errorf("it was not asked, because the server at %s answered for none of %d other databases: %w",
			s.address, s.silent, s.last)
	}
	return nil
}

func (s *server) end(err error) {
	if s == nil {
		return
	}
	s.mu.Lock()
	if errors.Is(err, context.DeadlineExceeded) {
		s.silent++
		s.last = err
	} else {
		s.answered = true
	}
	s.mu.Unlock()
	<-s.slots
}

// crowded reports whether it has more databases than are asked at once: then no connection is kept for the next time.
func (s *server) crowded() bool { return s != nil && s.databases > perServer }

// some bounds how many databases a text names.
const some = 20

// Some lists the names, or the first of very many.
func Some(names []string) string {
	if len(names) <= some {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:some], ", ") + " and " + printed.Number(len(names)-some) + " more"
}
