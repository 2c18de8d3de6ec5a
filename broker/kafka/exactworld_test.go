package kafka_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// table is an outbox in memory: rows, a cursor with its lease, and holds.
type table struct {
	mu      sync.Mutex
	rows    []relay.Delivery
	settled int // rows that the cursor has passed
	epoch   int
	holds   map[string][]relay.Delivery
	history []relay.Settlement
	owned   []string // by the broker of these names
}

// write appends messages as rows.
func (b *table) write(batch []*outbox.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range batch {
		row := relay.Delivery{Message: *m, Ref: uint64(len(b.rows) + 1)}
		row.Position = int64(len(b.rows) + 1)
		b.rows = append(b.rows, row)
	}
}

// Acquire gives the lease to any caller.
func (b *table) Acquire(context.Context) (relay.Session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.epoch++
	return &tableSession{table: b, epoch: b.epoch, passed: b.settled, read: b.settled}, nil
}

func (*table) Report(relay.State, error) {}
func (*table) Traits() relay.Traits      { return relay.Traits{} }

type tableSession struct {
	*table
	epoch        int
	passed, read int
}

var _ relay.Coupled = (*tableSession)(nil)

func (s *tableSession) Next(_ context.Context, limit int) (relay.Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch := slices.Clone(s.rows[s.read:min(s.read+limit, len(s.rows))])
	s.read += len(batch)
	return relay.Batch{Deliveries: batch}, nil
}

func (s *tableSession) Settle(_ context.Context, settlement relay.Settlement) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != s.table.epoch {
		return relay.ErrLeaseLost
	}
	s.history = append(s.history, settlement)
	for _, h := range settlement.Hold {
		s.hold(*h.Delivery)
	}
	for _, d := range settlement.HeldDelivered {
		s.holds[d.Lane()] = slices.DeleteFunc(s.holds[d.Lane()], func(h relay.Delivery) bool { return h.ID == d.ID })
	}
	if settlement.Through != nil {
		s.settled = int(settlement.Through.Position)
		s.passed = s.settled
	}
	return nil
}

// hold sets a row aside. The caller has the lock.
func (b *table) hold(d relay.Delivery) {
	if b.holds == nil {
		b.holds = map[string][]relay.Delivery{}
	}
	b.holds[d.Lane()] = append(b.holds[d.Lane()], d)
}

func (s *tableSession) Lanes(context.Context, string, int) ([]string, string, error) {
	return nil, "", nil
}
func (s *tableSession) Due(context.Context, relay.DueQuery) ([]relay.HeldLane, error) {
	return nil, nil
}

func (s *tableSession) Held(_ context.Context, lanes []string, limit int) (lists [][]relay.Delivery, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, lane := range lanes {
		lists = append(lists, slices.Clone(s.holds[lane][:min(limit, len(s.holds[lane]))]))
	}
	return lists, nil
}

func (s *tableSession) Confirm(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != s.table.epoch {
		return relay.ErrLeaseLost
	}
	return nil
}

// Passed knows the cursor as the session does, which may be late.
func (s *tableSession) Passed(_ uint64, position int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return position <= int64(s.passed)
}

func (s *tableSession) Controls(context.Context) (relay.Controls, error) {
	return relay.Controls{}, nil
}

func (s *tableSession) Recognize(_ context.Context, identity []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.owned) == 0 {
		s.owned = identity
	}
	if !slices.Equal(s.owned, identity) {
		return outbox.Permanent(errors.New("another broker"))
	}
	return nil
}

func (s *tableSession) Whole() bool                 { return true }
func (s *tableSession) Expires() time.Time          { return time.Now().Add(time.Hour) }
func (s *tableSession) Close(context.Context) error { return nil }

// exactWorld is a destination: a table, a topic, and what relays of it have in common.
type exactWorld struct {
	*cluster
	table
	id, topic string
}

func newExactWorld(t *testing.T) *exactWorld {
	t.Helper()
	c := connect(t, servers.TestKafka(t).Addr())
	w := &exactWorld{cluster: c, id: "x-" + outbox.NewID().String(), topic: c.topic(3)}
	w.create(w.id+"-cursor", 1, "cleanup.policy", "compact")
	return w
}

// exactRelay is one relay with its session.
type exactRelay struct {
	*kafka.ExactlyOnce
	session relay.Session
	world   *exactWorld
	*valve
}

// relay starts a relay, which takes over from the one before.
func (w *exactWorld) relay() *exactRelay {
	w.t.Helper()
	r := w.open(0)
	w.acquire(r, &w.table)
	return r
}

// open makes a relay without a session.
func (w *exactWorld) open(group int) *exactRelay {
	w.t.Helper()
	v := &valve{}
	e, err := kafka.NewExactlyOnce(kafka.Config{Brokers: w.seeds, Unanswered: 5 * time.Second, Dial: v.dial},
		kafka.ExactlyOnceConfig{ID: w.id, Group: group})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		v.heal()
		if err := e.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return &exactRelay{ExactlyOnce: e, world: w, valve: v}
}

// acquire begins a session.
func (w *exactWorld) acquire(r *exactRelay, from relay.Source) {
	w.t.Helper()
	var err error
	if r.session, err = r.Source(from).Acquire(patient(w.t)); err != nil {
		w.t.Fatal(err)
	}
}

// read returns the next n rows.
func (r *exactRelay) read(n int) []relay.Delivery {
	r.world.t.Helper()
	batch, err := r.session.Next(patient(r.world.t), n)
	if err != nil || len(batch.Deliveries) != n {
		r.world.t.Fatalf("%d of %d rows: %v", len(batch.Deliveries), n, err)
	}
	return batch.Deliveries
}

// deliver publishes until everything is accepted.
func (r *exactRelay) deliver(deliveries []relay.Delivery) {
	r.world.t.Helper()
	ctx := patient(r.world.t)
	for {
		errs := r.Publish(ctx, messagesOf(deliveries))
		if errs == nil {
			return
		}
		for i, err := range errs {
			if err != nil && !outbox.IsUnavailable(err) || ctx.Err() != nil {
				r.world.t.Fatalf("message %d: %v", i, err)
			}
		}
	}
}

func (r *exactRelay) settle(s relay.Settlement) {
	r.world.t.Helper()
	if err := r.session.Settle(patient(r.world.t), s); err != nil {
		r.world.t.Fatal(err)
	}
}

func messagesOf(deliveries []relay.Delivery) []*outbox.Message {
	batch := make([]*outbox.Message, len(deliveries))
	for i := range deliveries {
		batch[i] = &deliveries[i].Message
	}
	return batch
}

// unavailable requires that no message was accepted.
func unavailable(t testing.TB, errs []error, n int) {
	t.Helper()
	if len(errs) != n {
		t.Fatalf("%d errors for %d messages, want each unavailable", len(errs), n)
	}
	for i, err := range errs {
		if !outbox.IsUnavailable(err) {
			t.Fatalf("message %d: %v, want unavailable", i, err)
		}
	}
}

// once requires that a consumer of committed records sees every row once, and those of a key in order.
func (w *exactWorld) once(rows int) {
	w.t.Helper()
	got := w.committed()
	seen := map[outbox.ID]int{}
	last := map[string]int{}
	for _, m := range got {
		seen[m.ID]++
		at := slices.IndexFunc(w.rows, func(d relay.Delivery) bool { return d.ID == m.ID })
		if before, any := last[m.Key]; any && at < before {
			w.t.Errorf("row %d comes behind row %d of its key", at, before)
		}
		last[m.Key] = at
	}
	for i := range w.rows {
		want := 0
		if i < rows {
			want = 1
		}
		if n := seen[w.rows[i].ID]; n != want {
			w.t.Errorf("row %d was seen %d times, want %d", i, n, want)
		}
	}
	if len(got) != rows {
		w.t.Errorf("%d records, want %d", len(got), rows)
	}
}

// committed reads the topic to its end, as consumers with isolation.level=read_committed see it.
func (w *exactWorld) committed() (messages []outbox.Message) {
	w.t.Helper()
	ctx := patient(w.t)
	ends, err := w.admin.ListEndOffsets(ctx, w.topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	client, err := kgo.NewClient(kgo.SeedBrokers(w.seeds...), kgo.ConsumeTopics(w.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.FetchMaxWait(100*time.Millisecond), kgo.DisableClientMetrics())
	if err != nil {
		w.t.Fatal(err)
	}
	defer client.Close()
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			w.t.Fatalf("partitions %v: %v", left, err)
		}
		for r := range fetches.RecordsAll() {
			if !r.Attrs.IsControl() {
				m, err := message(r)
				if err != nil {
					w.t.Fatal(err)
				}
				messages = append(messages, m)
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		}
	}
	return messages
}

// valve stands in all connections of a relay. The next request of the kind it watches for is stopped, after or
// before the server gets it, and so is everything after it until heal.
type valve struct {
	mu      sync.Mutex
	watched kmsg.Key
	late    bool          // lose the answer, not the request
	reached chan struct{} // closed when the request came; nil: nothing is watched
	healed  chan struct{} // closed by heal
	frozen  bool          // stand still instead of breaking
	closed  bool          // everything is stopped
	open    map[*valveConn]bool
}

var errValve = errors.New("the test has cut the connection")

// cut breaks everything at the next request of a kind, before the server gets it.
func (v *valve) cut(key kmsg.Key) <-chan struct{} { return v.watch(key, false, false) }

// lose breaks everything at the answer to the next request of a kind.
func (v *valve) lose(key kmsg.Key) <-chan struct{} { return v.watch(key, true, false) }

// freeze makes everything stand still at the next request of a kind, which the server gets after heal.
func (v *valve) freeze(key kmsg.Key) <-chan struct{} { return v.watch(key, false, true) }

func (v *valve) watch(key kmsg.Key, late, frozen bool) <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.watched, v.late, v.frozen = key, late, frozen
	v.reached, v.healed = make(chan struct{}), make(chan struct{})
	return v.reached
}

// strand makes the connections that there are half-open: nothing passes any more, and neither end is told. New ones
// work.
func (v *valve) strand() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for c := range v.open {
		c.stranded.Store(true)
	}
}

func (v *valve) heal() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.healed != nil {
		close(v.healed)
		v.healed = nil
	}
	v.closed, v.reached = false, nil
}

func (v *valve) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if err := v.pass(); err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &valveConn{Conn: conn, valve: v}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.open == nil {
		v.open = map[*valveConn]bool{}
	}
	v.open[c] = true
	return c, nil
}

// pass waits, or fails, while everything is stopped.
func (v *valve) pass() error {
	v.mu.Lock()
	healed, closed, frozen := v.healed, v.closed, v.frozen
	v.mu.Unlock()
	switch {
	case !closed:
		return nil
	case frozen:
		<-healed
		return nil
	}
	return errValve
}

// stop stops everything. The caller has the lock.
func (v *valve) stop() {
	v.closed = true
	close(v.reached)
	v.reached = nil
	if !v.frozen {
		for c := range v.open {
			c.Conn.Close()
		}
		clear(v.open)
	}
}

type valveConn struct {
	net.Conn
	valve   *valve
	awaited uint32 // the number of the request whose answer is to be lost, plus one; 0: none
	head    []byte // length, number, tags, throttle time and error of the answer that comes, as far as they have come
	rest    int    // of its bytes

	stranded atomic.Bool
}

// Write gets one request at a time: its length, kind, version and number.
func (c *valveConn) Write(p []byte) (int, error) {
	v := c.valve
	v.mu.Lock()
	if v.reached != nil && len(p) >= 12 && kmsg.Key(binary.BigEndian.Uint16(p[4:])) == v.watched {
		if v.late {
			c.awaited = binary.BigEndian.Uint32(p[8:]) + 1
		} else {
			v.stop()
		}
	}
	v.mu.Unlock()
	if c.stranded.Load() {
		return len(p), nil
	}
	if err := v.pass(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// Read passes answers on, but for the one that is to be lost.
func (c *valveConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	v := c.valve
	v.mu.Lock()
	if c.brings(p[:n]) && v.reached != nil {
		v.stop()
	}
	v.mu.Unlock()
	if err := v.pass(); err != nil {
		return 0, fmt.Errorf("%w: %w", io.EOF, err)
	}
	return n, err
}

// brings reports whether the awaited answer begins in p. A transaction that could not be ended yet is asked to end
// again: that answer isn't the one to lose.
func (c *valveConn) brings(p []byte) (found bool) {
	for len(p) > 0 {
		if c.rest > 0 {
			n := min(c.rest, len(p))
			p, c.rest = p[n:], c.rest-n
			continue
		}
		length := 4 // the length's own
		if len(c.head) >= 4 {
			length += int(binary.BigEndian.Uint32(c.head))
		}
		n := min(min(length, 15)-len(c.head), len(p))
		c.head, p = append(c.head, p[:n]...), p[n:]
		if length == 4 || len(c.head) < min(length, 15) {
			continue
		}
		refused := c.valve.watched == kmsg.EndTxn && len(c.head) == 15 && binary.BigEndian.Uint16(c.head[13:]) != 0
		found = found || c.awaited > 0 && binary.BigEndian.Uint32(c.head[4:])+1 == c.awaited && !refused
		c.rest = length - len(c.head)
		c.head = c.head[:0]
	}
	return found
}
