package daemon

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox/cmd/internal/bounds"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/relay"
)

// limits are the bounds that the databases of a process share.
type limits struct {
	connections *bounds.Connections
	memory      *bounds.Memory
	turns       *bounds.Turns
}

func newLimits(cfg config.Limits) *limits {
	return &limits{bounds.NewConnections(cfg.ConnectionsPerServer),
		bounds.NewMemory(bounds.Amount{Messages: int64(cfg.InFlight), Bytes: int64(cfg.InFlightBytes)}), bounds.NewTurns(cfg.CatchUps)}
}

// errYield ends what has to make room for others, and then begins again.
var errYield = errors.New("others wait for what this one has")

// yielding is a request to make room, which is kept until somebody acts on it.
type yielding chan struct{}

func newYielding() yielding { return make(yielding, 1) }

func (y yielding) ask() {
	select {
	case y <- struct{}{}:
	default:
	}
}

// until returns a context that ends when ctx does, or with errYield when room is to be made. stop is called at the end.
func (y yielding) until(ctx context.Context) (_ context.Context, stop func()) {
	if ctx.Value(whole{}) == nil {
		ctx = context.WithValue(ctx, whole{}, ctx)
	}
	return endedBy(ctx, errYield, func(ctx context.Context) bool {
		select {
		case <-y:
			return true
		case <-ctx.Done():
			return false
		}
	})
}

// endedBy returns a context that ends when ctx does, or with cause when happens returns true. It returns false at the
// latest when the context has ended. stop is called at the end, and waits for happens.
func endedBy(ctx context.Context, cause error, happens func(context.Context) bool) (_ context.Context, stop func()) {
	own, cancel := context.WithCancelCause(ctx)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if happens(own) {
			cancel(cause)
		}
	})
	return own, func() { cancel(nil); waiting.Wait() }
}

// whole is the key of the context that lasts while turns come and go.
type whole struct{}

// bound makes the connections of a unit count against the bound of their server.
func (u *unit) bound() {
	if u.options.limits == nil {
		u.options.limits = newLimits(config.Limits{})
	}
	u.yields = newYielding()
	u.sessions = u.options.limits.connections.Client(u.yields.ask)
	u.conn = u.conn.Copy()
	u.conn.DialFunc = u.sessions.Dial(u.conn.DialFunc)
}

// aside returns the address for sessions that deliver nothing: they come last.
func (u *unit) aside() *pgx.ConnConfig {
	conn := u.conn.Copy()
	conn.DialFunc = u.sessions.DialAside(u.Conn.DialFunc)
	return conn
}

// yield lets those databases have the server's sessions that have waited for them. It is called when none is in use.
func (u *unit) yield(ctx context.Context) error {
	u.logger.Info("sessions given back, because other databases have waited for them: see limits.connections_per_server")
	_ = u.sessions.Rejoin(ctx) // if ctx ends, nothing begins
	return nil
}

// runInTurns runs r until ctx ends. If others wait for memory that its messages have and do nothing with, it ends and
// begins again. The source and the broker are for one Run at a time, so the next one waits for calls that hang, be it
// here or after the unit has yielded: only the end of the process leaves them behind.
func runInTurns(ctx context.Context, r *relay.Relay, yields yielding, calls *calls) error {
	for {
		own, stop := yields.until(ctx)
		err := r.Run(own)
		asked := errors.Is(context.Cause(own), errYield)
		stop()
		if lasts, _ := own.Value(whole{}).(context.Context); errors.Is(err, relay.ErrHung) && asked && calls.wait(lasts) == nil {
			err = nil
		}
		if err != nil || !asked || ctx.Err() != nil {
			return err
		}
	}
}

// calls counts the messages in calls to a broker.
type calls struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when there are none; nil: nobody waits
}

func (c *calls) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n += n; c.n == 0 && c.none != nil {
		close(c.none)
		c.none = nil
	}
}

// wait waits until all have returned.
func (c *calls) wait(ctx context.Context) error {
	c.mu.Lock()
	if c.n == 0 {
		c.mu.Unlock()
		return nil
	}
	if c.none == nil {
		c.none = make(chan struct{})
	}
	none := c.none
	c.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// limited is a source whose sessions ask before they begin, read what has piled up, and have messages in flight.
type limited struct {
	relay.Source
	turns  *bounds.Turns
	server string
	memory *bounds.Memory
	share  *bounds.Share
	quota  *bounds.Quota
}

var _ relay.Source = (*limited)(nil)

// limit bounds a source of a unit.
func (u *unit) limit(source relay.Source, share *bounds.Share) relay.Source {
	return &limited{Source: source, turns: u.options.limits.turns, server: u.server(), memory: u.options.limits.memory, share: share,
		quota: u.quota}
}

// server is the address of the unit's server.
func (u *unit) server() string {
	return net.JoinHostPort(u.conn.Host, strconv.Itoa(int(u.conn.Port)))
}

// Acquire waits for a turn. It keeps it while it stands by only if nobody else wants one.
func (l *limited) Acquire(ctx context.Context) (relay.Session, error) {
	turn := l.turns.Turn(l.server)
	if err := turn.Begin(ctx); err != nil {
		return nil, err
	}
	session, err := l.Source.Acquire(ctx)
	if err != nil {
		turn.End()
		return nil, err
	}
	l.quota.Come()
	return &limitedSession{Session: session, source: l, turn: turn, behind: true, held: make(map[*bounds.Held]bool)}, nil
}

// limitedSession asks for what a session's messages need, and gives it back.
type limitedSession struct {
	relay.Session
	source *limited
	turn   *bounds.Turn
	behind bool // it has not read yet what had piled up

	gone sync.Once

	mu   sync.Mutex
	held map[*bounds.Held]bool
}

// fullAfter is how long a read waits for memory until the destination says so.
const fullAfter = 5 * time.Second

func (s *limitedSession) Next(ctx context.Context, limit int) (relay.Batch, error) {
	if s.behind {
		if err := s.turn.Begin(ctx); err != nil {
			return relay.Batch{}, err
		}
	}
	asking, cancel := context.WithTimeout(ctx, fullAfter)
	held, err := s.source.share.Take(asking)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			return relay.Batch{Full: s.source.memory.Full()}, nil
		}
		return relay.Batch{}, err
	}
	batch, err := s.Session.Next(ctx, limit)
	if err != nil {
		held.Give()
		return batch, err
	}
	if s.behind && !batch.More {
		s.behind = false
		s.turn.End()
	}
	held.Read(amount(batch))
	if len(batch.Deliveries) > 0 {
		s.hold(held)
		recycle := batch.Recycle
		batch.Recycle = func() {
			if recycle != nil {
				recycle()
			}
			s.give(held)
		}
	}
	return batch, nil
}

// amount is what a batch has in memory: the variable parts of its messages, and what the engine needs for each.
func amount(b relay.Batch) bounds.Amount {
	a := bounds.Amount{Messages: int64(len(b.Deliveries))}
	for i := range b.Deliveries {
		m := &b.Deliveries[i].Message
		n := len(m.Payload) + len(m.Topic) + len(m.Key) + 256
		for h := range m.Headers {
			n += len(m.Headers[h].Name) + len(m.Headers[h].Value)
		}
		a.Bytes += int64(n)
	}
	return a
}

// hold notes what is to be given back.
func (s *limitedSession) hold(h *bounds.Held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[h] = true
}

func (s *limitedSession) give(h *bounds.Held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, h)
	h.Give()
}

// Close gives back all that the session has.
func (s *limitedSession) Close(ctx context.Context) error {
	err := s.Session.Close(ctx)
	s.turn.End()
	s.source.share.Cancel()
	s.gone.Do(s.source.quota.Go)
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.held {
		h.Give()
	}
	clear(s.held)
	return err
}

// used are the metrics of the bounds, at the time of the scrape.
type used struct {
	limits  *limits
	clients *brokers.Pool

	shared, sharedWaiting, sharedWaited *prometheus.Desc

	sessions, sessionsWaiting, sessionsWaited, sessionsYielded *prometheus.Desc
	messages, bytes, memoryWaiting, memoryWaited, yielded      *prometheus.Desc
	catchUps, catchUpsWaiting, catchUpsWaited                  *prometheus.Desc
	most                                                       *prometheus.Desc
}

func newUsed(b *book, l *limits, clients *brokers.Pool) *used {
	u := &used{limits: l, clients: clients,
		shared: b.describe("broker_clients", "gauge", "Broker clients that destinations share.", "broker"),
		sharedWaiting: b.describe("broker_calls_waiting", "gauge",
			"Calls that wait because other destinations use the same client.", "broker"),
		sharedWaited: b.describe("broker_calls_waited_total", "counter",
			"Calls that had to wait for those of other destinations.", "broker"),
		most: b.describe("limit", "gauge", "A bound of the section limits, 0 if there is none.", "limit"),
		sessions: b.describe("server_sessions", "gauge",
			"Sessions of this process with a PostgreSQL server.", "server"),
		sessionsWaiting: b.describe("server_sessions_waiting", "gauge",
			"Those that wait because as many are open as limits.connections_per_server allows.", "server"),
		sessionsWaited: b.describe("server_sessions_waited_total", "counter", "Sessions that had to wait for that bound.", "server"),
		sessionsYielded: b.describe("server_sessions_yielded_total", "counter",
			"How often a database gave all of its sessions to those that wait.", "server"),
		messages: b.describe("process_in_flight_messages", "gauge", "Messages that are read and not settled, of all databases."),
		bytes:    b.describe("process_in_flight_bytes", "gauge", "Their size."),
		memoryWaiting: b.describe("process_in_flight_waiting", "gauge",
			"Shard groups that wait because as much is in flight as limits.in_flight or limits.in_flight_bytes allows."),
		memoryWaited: b.describe("process_in_flight_waited_total", "counter", "Reads that had to wait for that bound."),
		yielded: b.describe("process_in_flight_yielded_total", "counter",
			"How often a shard group dropped what it had in flight, and did nothing with, because others waited."),
		catchUps: b.describe("server_catch_ups", "gauge", "Sessions that begin, or read what has piled up.", "server"),
		catchUpsWaiting: b.describe("server_catch_ups_waiting", "gauge",
			"Those that wait because as many do so as limits.catch_ups allows.", "server"),
		catchUpsWaited: b.describe("server_catch_ups_waited_total", "counter", "Turns that had to be waited for.", "server"),
	}
	b.add(u)
	return u
}

func (u *used) Describe(described chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{u.most, u.sessions, u.sessionsWaiting, u.sessionsWaited, u.sessionsYielded, u.messages, u.bytes,
		u.memoryWaiting, u.memoryWaited, u.yielded, u.catchUps, u.catchUpsWaiting, u.catchUpsWaited,
		u.shared, u.sharedWaiting, u.sharedWaited} {
		described <- d
	}
}

func (u *used) Collect(collected chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		collected <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		collected <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, s := range u.limits.connections.Servers() {
		gauge(u.sessions, float64(s.Open), s.Address)
		gauge(u.sessionsWaiting, float64(s.Waiting), s.Address)
		counter(u.sessionsWaited, s.Waits, s.Address)
		counter(u.sessionsYielded, s.Yields, s.Address)
	}
	m := u.limits.memory.Use()
	gauge(u.messages, float64(m.Used.Messages))
	gauge(u.bytes, float64(m.Used.Bytes))
	gauge(u.memoryWaiting, float64(m.Waiting))
	counter(u.memoryWaited, m.Waits)
	counter(u.yielded, m.Yields)
	for _, t := range u.limits.turns.Use() {
		gauge(u.catchUps, float64(t.Having), t.Server)
		gauge(u.catchUpsWaiting, float64(t.Waiting), t.Server)
		counter(u.catchUpsWaited, t.Waited, t.Server)
	}
	for _, s := range u.clients.Use() {
		gauge(u.shared, float64(s.Clients), s.Broker)
		gauge(u.sharedWaiting, float64(s.Waiting), s.Broker)
		counter(u.sharedWaited, s.Waits, s.Broker)
	}
	gauge(u.most, float64(u.limits.connections.Limit()), "connections_per_server")
	gauge(u.most, float64(m.Most.Messages), "in_flight")
	gauge(u.most, float64(m.Most.Bytes), "in_flight_bytes")
	gauge(u.most, float64(u.limits.turns.Limit()), "catch_ups")
}
