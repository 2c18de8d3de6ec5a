package bounds

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// LeastConnections is the smallest bound on the sessions with a server. One database has room to deliver with it.
const LeastConnections = 8

// Connections bounds the sessions of this process with each PostgreSQL server, by its address. Those who wait for one
// get it in this order: databases that have none, then those that need another. Among each, the one comes first that
// has had all that it needed the longest time ago.
//
// Databases that have a session, and all need another one, would wait for each other. So a quarter of the bound is not
// for first ones, and who waits for a second one for long comes before these. If somebody waits for long, a database is
// asked to yield all of its sessions: the one that has had all that it needs for the longest time. If all need more, it
// is the one that comes last in the order. It comes again behind all who wait.
//
// What people look with comes last, and nobody yields for it.
type Connections struct {
	limit int // 0: none

	mu      sync.Mutex
	servers map[string]*server
}

// NewConnections returns a bound, or none if limit is 0.
func NewConnections(limit int) *Connections {
	return &Connections{limit: limit, servers: make(map[string]*server)}
}

// server is one address with its sessions and those who wait for one.
type server struct {
	address string
	open    int
	clients map[*Client]int // the sessions of each that has any
	waiting []*waiter       // in the order in which they came
	waits   uint64          // how often somebody had to wait
	yields  uint64
}

// waiter is a call that waits.
type waiter struct {
	client  *Client
	rejoins bool // it wants no session, but that all before it have one
	aside   bool // it comes last
	since   time.Time
	ready   chan struct{} // closed when it has what it waits for
}

// needs reports whether it waits for a session to deliver with.
func (w *waiter) needs() bool { return !w.rejoins && !w.aside }

// Client is what one database has of the bound.
type Client struct {
	all *Connections

	// Yield asks the database to close all of its sessions in good order and then to call Rejoin. It must not block.
	// nil: it never yields.
	yield func()

	since    time.Time // when it got the last of its sessions
	served   time.Time // until when it last had all that it needed
	yielding bool
	yields   []*server // where it is asked to
}

// Client returns a part in the bound. yield may be nil.
func (c *Connections) Client(yield func()) *Client {
	return &Client{all: c, yield: yield}
}

// ErrConnections is why there is no session: as many as the bound allows are in use. It doesn't wrap the error of a
// context, in place of which drivers report a timeout.
type ErrConnections struct {
	Limit   int
	Address string
	Waited  time.Duration
}

func (e *ErrConnections) Error() string {
	return fmt.Sprintf("all %d sessions that limits.connections_per_server allows this process at %s are in use, and none was "+
		"free for %v: raise it as far as the server's max_connections allows, or have another process deliver from some of "+
		"the databases", e.Limit, e.Address, e.Waited.Round(time.Millisecond))
}

// Dial returns a function that connects as dial does, when the bound allows it. What it returns is in use until it is
// closed.
func (c *Client) Dial(dial pgconn.DialFunc) pgconn.DialFunc { return c.dial(dial, false) }

// DialAside is Dial for sessions that deliver nothing.
func (c *Client) DialAside(dial pgconn.DialFunc) pgconn.DialFunc { return c.dial(dial, true) }

func (c *Client) dial(dial pgconn.DialFunc, aside bool) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if err := c.enter(ctx, address, aside); err != nil {
			return nil, err
		}
		conn, err := dial(ctx, network, address)
		if err != nil {
			c.leave(address)
			return nil, err
		}
		return &session{Conn: conn, leave: func() { c.leave(address) }}, nil
	}
}

// session is a connection that gives its place back when it is closed.
type session struct {
	net.Conn
	once  sync.Once
	leave func()
}

func (s *session) Close() error {
	err := s.Conn.Close()
	s.once.Do(s.leave)
	return err
}

// enter waits for a session with a server.
func (c *Client) enter(ctx context.Context, address string, aside bool) error {
	c.all.mu.Lock()
	s := c.all.server(address)
	w := c.all.queue(s, &waiter{client: c, aside: aside})
	return c.all.await(ctx, s, w)
}

// leave gives a session back.
func (c *Client) leave(address string) {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	s := c.all.server(address)
	s.open--
	if s.clients[c]--; s.clients[c] == 0 {
		delete(s.clients, c)
	}
	c.all.grant(s)
	c.all.forget(s)
}

// Rejoin waits until all who waited before this call have a session, or wait no more. A database that has yielded
// calls it before it connects again.
func (c *Client) Rejoin(ctx context.Context) error {
	c.all.mu.Lock()
	servers := c.yields
	c.yielding, c.yields = false, nil
	var waiting []*waiter
	for _, s := range servers {
		waiting = append(waiting, c.all.queue(s, &waiter{client: c, rejoins: true}))
	}
	c.all.mu.Unlock()
	for i, w := range waiting {
		c.all.mu.Lock()
		if err := c.all.await(ctx, servers[i], w); err != nil {
			for n := i + 1; n < len(waiting); n++ {
				c.all.leaveQueue(servers[n], waiting[n])
			}
			return err
		}
	}
	return nil
}

// Crowded reports whether somebody waits for a session with a server at which the client has one. Then what is not
// needed now should be closed.
func (c *Client) Crowded() bool {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	for _, s := range c.all.servers {
		if s.clients[c] > 0 && slices.ContainsFunc(s.waiting, (*waiter).needs) {
			return true
		}
	}
	return false
}

// server returns the one at an address. c.mu is held, as in all that follow.
func (c *Connections) server(address string) *server {
	s := c.servers[address]
	if s == nil {
		s = &server{address: address, clients: make(map[*Client]int)}
		c.servers[address] = s
	}
	return s
}

// forget drops a server that nobody has a session with.
func (c *Connections) forget(s *server) {
	if s.open == 0 && len(s.waiting) == 0 && s.waits == 0 { // its counters stay
		delete(c.servers, s.address)
	}
}

// queue makes somebody wait, and serves whom it can.
func (c *Connections) queue(s *server, w *waiter) *waiter {
	w.since, w.ready = time.Now(), make(chan struct{})
	s.waiting = append(s.waiting, w)
	c.grant(s)
	if !w.rejoins && slices.Contains(s.waiting, w) {
		s.waits++
	}
	return w
}

// await unlocks c.mu and waits. Who doesn't wait any longer has no place in the queue, and no session.
func (c *Connections) await(ctx context.Context, s *server, w *waiter) error {
	c.mu.Unlock()
	tick := time.NewTicker(patience)
	defer tick.Stop()
	for {
		select {
		case <-w.ready:
			return nil
		case <-tick.C:
			c.relieve(s)
		case <-ctx.Done():
			if !c.leaveQueue(s, w) { // it was served at the same moment
				if !w.rejoins {
					w.client.leave(s.address)
				}
				return ctx.Err()
			}
			if w.rejoins {
				return ctx.Err()
			}
			return &ErrConnections{c.limit, s.address, time.Since(w.since)}
		}
	}
}

// leaveQueue reports whether w still waited.
func (c *Connections) leaveQueue(s *server, w *waiter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(s.waiting, w)
	if i < 0 {
		return false
	}
	s.waiting = slices.Delete(s.waiting, i, i+1)
	c.grant(s)
	c.forget(s)
	return true
}

// grant serves those who wait as far as there is room.
func (c *Connections) grant(s *server) {
	for {
		i := c.next(s)
		if i < 0 {
			return
		}
		w := s.waiting[i]
		s.waiting = slices.Delete(s.waiting, i, i+1)
		if !w.rejoins {
			w.client.since = time.Now()
			s.open++
			s.clients[w.client]++
		}
		close(w.ready)
	}
}

// next returns the index of the one who is served next, -1 if there is none.
func (c *Connections) next(s *server) int {
	if i := slices.IndexFunc(s.waiting, func(w *waiter) bool { return !w.aside }); i >= 0 && s.waiting[i].rejoins {
		return i // nobody is before it
	}
	if c.limit > 0 && s.open >= c.limit {
		return -1
	}
	first, second, aside := -1, -1, -1
	for i, w := range s.waiting {
		has := s.clients[w.client]
		switch {
		case w.rejoins:
		case w.aside:
			if aside < 0 {
				aside = i
			}
		case has > 0:
			if second < 0 || s.before(w.client, s.waiting[second].client) < 0 {
				second = i
			}
		case (first < 0 || s.before(w.client, s.waiting[first].client) < 0) && (c.limit == 0 || len(s.clients) < c.limit-c.limit/4):
			first = i
		}
	}
	switch {
	case second >= 0 && (first < 0 || time.Since(s.waiting[second].since) >= patience):
		return second
	case first < 0 && !slices.ContainsFunc(s.waiting, (*waiter).needs):
		return aside
	}
	return first
}

// before orders databases: below 0, a comes before b.
func (s *server) before(a, b *Client) int {
	return cmp.Or(a.served.Compare(b.served), s.clients[b]-s.clients[a])
}

// relieve asks one database to yield, if somebody has waited for long and none yields already.
func (c *Connections) relieve(s *server) {
	c.mu.Lock()
	yields := s.yielder(time.Now())
	if yields != nil {
		yields.yielding, yields.yields = true, append(yields.yields, s)
		s.yields++
	}
	c.mu.Unlock()
	if yields != nil {
		yields.yield()
	}
}

// yielder returns the database that is to yield now, nil if there is none.
func (s *server) yielder(now time.Time) *Client {
	needs := make(map[*Client]bool)
	long := false
	for _, w := range s.waiting {
		if w.needs() {
			needs[w.client] = true
			long = long || now.Sub(w.since) >= patience/2
		}
	}
	var served, all []*Client
	for client := range s.clients {
		if client.yielding {
			return nil
		}
		if client.yield == nil {
			continue
		}
		all = append(all, client)
		if !needs[client] {
			served = append(served, client)
		}
	}
	early := func(client *Client) bool { return now.Sub(client.since) < undisturbed }
	switch ready := slices.DeleteFunc(slices.Clone(served), early); {
	case !long:
	case len(ready) > 0:
		yields := slices.MinFunc(ready, func(a, b *Client) int { return a.since.Compare(b.since) })
		yields.served = now
		return yields
	case len(served) > 0: // one of them will
	default:
		if all = slices.DeleteFunc(all, early); len(all) > 0 {
			return slices.MaxFunc(all, s.before)
		}
	}
	return nil
}

// Server is how a server's sessions are used.
type Server struct {
	Address       string
	Open, Waiting int
	Waits, Yields uint64 // so far
}

// Servers lists all that are in use, or were waited for.
func (c *Connections) Servers() (list []Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.servers {
		list = append(list, Server{s.address, s.open, len(s.waiting), s.waits, s.yields})
	}
	slices.SortFunc(list, func(a, b Server) int { return cmp.Compare(a.Address, b.Address) })
	return list
}

// Limit is the bound, 0 if there is none.
func (c *Connections) Limit() int { return c.limit }
