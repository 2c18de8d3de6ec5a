package relaytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/seed"
	"github.com/pgoutbox/outbox/relay"
)

// SourceHarness connects the suite with one strategy and a fresh database.
type SourceHarness struct {
	// Open returns a source for the relay and shard group in o, without acquiring. Sources with the same Relay follow
	// one another, as after a restart. Required.
	Open func(t *testing.T, o SourceOptions) relay.Source

	// Begin starts a writer's transaction. Any number may be open. Required.
	Begin func(ctx context.Context) (SourceTx, error)

	// Crash ends a session as SIGKILL of its process would: it settles and gives back nothing, and its connections end.
	// Required.
	Crash func(relay.Session)

	// Hang makes a session continue without renewing its lease, as in a process that is stopped. Only for strategies
	// where a relay waits for another of its name as for any other; nil where it takes over.
	Hang func(relay.Session)

	// DeadLetters returns a destination's dead letters by position. Required.
	DeadLetters func(ctx context.Context, destination string) ([]DeadLetter, error)

	// What a strategy can't do, which the suite leaves out.
	OneDestination   bool // a table has a single destination
	NoGroups         bool // there are no shard groups
	WaitsForWriters  bool // an open transaction delays what others have committed
	NoOrder          bool // keys are not in order
	SharedOwnership  bool // several sessions may read at once
	CallsForHolds    bool // the strategy keeps no holds: Lanes and Held return nothing
	RepeatsMoreAfter bool // after a crash settled messages may come again too
	ConnectionOwns   bool // what a session owns belongs to its connection: no other can take it over while the connection lasts
	WritersQueue     bool // a writer waits until the previous one has ended
	Forgets          bool // nothing records which broker a destination has

	// RepeatsBehindHolds means that after a crash everything comes again that was settled behind a held message,
	// because the strategy's position can't pass that message.
	RepeatsBehindHolds bool

	// WholeTransactions means that a successor begins with a whole transaction: if one was settled in part, all of it
	// comes again.
	WholeTransactions bool
}

// SourceOptions describes the requested source.
type SourceOptions struct {
	Destination string        // default "orders"
	Relay       string        // the relay's name, default "one"
	Group       int           // from 0
	Groups      int           // default 1
	Lease       time.Duration // default: as long as the test lasts
}

// SourceTx is a writer's transaction.
type SourceTx interface {
	// Insert writes messages in order. Messages without a topic get the topic "t".
	Insert(ctx context.Context, ms ...outbox.Message) error
	// Savepoint runs f and rolls back what it has written.
	Savepoint(ctx context.Context, f func() error) error
	// Lock locks the row of a key until the transaction ends, as a service that changes an aggregate does.
	Lock(ctx context.Context, key string) error
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// DeadLetter is a row of the dead letters.
type DeadLetter struct {
	ID       outbox.ID
	Payload  string
	Attempts int
	Reason   relay.Reason
	Error    string
}

// RunSource checks the contract of relay.Source and relay.Session. It calls open once for each case; the cases run in
// parallel.
func RunSource(t *testing.T, open func(t *testing.T) SourceHarness) {
	run := func(name string, check func(*sourceCase)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(&sourceCase{T: t, ctx: await.Context(t), h: open(t)})
		})
	}
	run("every field arrives", (*sourceCase).everyFieldArrives)
	run("what was rolled back is never seen", (*sourceCase).rolledBack)
	run("a batch is no larger than asked for and what it points to stays", (*sourceCase).batches)
	run("a settlement in the middle of a batch is where a successor goes on", (*sourceCase).settleInTheMiddle)
	run("a crash before a settlement repeats what was not settled", (*sourceCase).crashRepeats)
	run("a reader that is interrupted can still settle", (*sourceCase).interrupted)
	run("concurrent writers lose and repeat nothing, and keys keep their order", (*sourceCase).concurrentWriters)
	run("dead letters are kept with their error", (*sourceCase).deadLetters)
	run("a source has one session at a time", (*sourceCase).oneSession)
	run("a destination knows its broker again", (*sourceCase).recognize)
	var h SourceHarness
	t.Run("capabilities", func(t *testing.T) { h = open(t) })
	if !h.RepeatsMoreAfter {
		run("a crash behind a hold repeats what the strategy says, neither more nor less", (*sourceCase).crashBehindHold)
	}
	if h.WholeTransactions {
		run("a transaction that was settled in part comes again as a whole", (*sourceCase).wholeTransactions)
	}
	if !h.WritersQueue {
		run("a late commit of a lower id is not skipped", (*sourceCase).lateCommit)
	}
	if !h.WaitsForWriters && !h.WritersQueue {
		run("an open transaction delays no other", (*sourceCase).openTransaction)
	}
	if !h.SharedOwnership {
		run("two relays never own a shard group at once", (*sourceCase).oneOwner)
		if h.ConnectionOwns {
			run("a relay that has lost its connection settles nothing", (*sourceCase).lostConnection)
		} else {
			run("a relay that has lost its lease settles nothing", (*sourceCase).staleEpoch)
		}
		run("a lease lasts while its session does", (*sourceCase).leaseLasts)
	}
	if !h.CallsForHolds {
		run("a hold waits, is tried again and ends", (*sourceCase).holds)
		run("the head of a lane speaks for it", (*sourceCase).lanes)
		run("lanes are listed by time, without closed and paused ones", (*sourceCase).dueLanes)
		run("a message that waits behind nothing is due", (*sourceCase).holdBehindNothing)
	}
	if !h.OneDestination {
		run("each destination has a cursor of its own", (*sourceCase).destinations)
	}
	if !h.NoGroups {
		run("shard groups share the messages by key", (*sourceCase).groups)
	}
}

// shortLease is waited out in cases, and kept before. Who is silent for longer loses it, so a busy machine needs that
// much.
const shortLease = 5 * time.Second

// sourceCase is one running case. Its methods end the test when something fails that is not the subject of the case.
type sourceCase struct {
	*testing.T
	ctx context.Context
	h   SourceHarness
}

func (c *sourceCase) check(what string, err error) {
	c.Helper()
	if err != nil {
		c.Fatalf("%s: %v", what, err)
	}
}

func (c *sourceCase) open(o SourceOptions) relay.Source {
	c.Helper()
	if o.Destination == "" {
		o.Destination = "orders"
	}
	if o.Relay == "" {
		o.Relay = "one"
	}
	if o.Groups == 0 {
		o.Groups = 1
	}
	if o.Lease == 0 {
		o.Lease = 2 * time.Minute
	}
	return c.h.Open(c.T, o)
}

// acquire opens a session, and closes it at the end of the test if the case doesn't.
func (c *sourceCase) acquire(source relay.Source) *sourceSession {
	c.Helper()
	session, err := source.Acquire(c.ctx)
	c.check("acquire", err)
	s := &sourceSession{Session: session, c: c}
	c.Cleanup(func() {
		if !s.over {
			_ = session.Close(context.Background()) // the case may have broken it
		}
	})
	return s
}

func (c *sourceCase) session(o SourceOptions) *sourceSession {
	c.Helper()
	return c.acquire(c.open(o))
}

func (c *sourceCase) begin() SourceTx {
	c.Helper()
	tx, err := c.h.Begin(c.ctx)
	c.check("begin", err)
	return tx
}

// write commits messages in one transaction; or each in its own, where a part of a transaction can't be settled.
func (c *sourceCase) write(ms ...outbox.Message) {
	c.Helper()
	if c.h.WholeTransactions {
		for i := range ms {
			c.writeTogether(ms[i])
		}
		return
	}
	c.writeTogether(ms...)
}

func (c *sourceCase) writeTogether(ms ...outbox.Message) {
	c.Helper()
	tx := c.begin()
	c.check("insert", tx.Insert(c.ctx, ms...))
	c.check("commit", tx.Commit(c.ctx))
}

// note is a message of a key with a text as its payload.
func note(key, text string) outbox.Message {
	return outbox.Message{Topic: "t", Key: key, Payload: []byte(text)}
}

func notes(key string, from, to int) (ms []outbox.Message) {
	for i := from; i <= to; i++ {
		ms = append(ms, note(key, strconv.Itoa(i)))
	}
	return ms
}

type sourceSession struct {
	relay.Session
	c    *sourceCase
	over bool
}

func (s *sourceSession) close() {
	s.c.Helper()
	s.over = true
	s.c.check("close", s.Close(s.c.ctx))
}

func (s *sourceSession) crash() {
	s.over = true
	s.c.h.Crash(s.Session)
}

// read returns copies of the next n messages; their batches were recycled.
func (s *sourceSession) read(n int) []relay.Delivery {
	s.c.Helper()
	var all []relay.Delivery
	for len(all) < n {
		batch, err := s.Next(s.c.ctx, n-len(all))
		if err != nil {
			s.c.Fatalf("next, after %s: %v", texts(all), err)
		}
		for i := range batch.Deliveries {
			all = append(all, copyOf(&batch.Deliveries[i]))
		}
		if batch.Recycle != nil {
			batch.Recycle()
		}
	}
	return all
}

// expect reads as many messages as there are texts and compares them, in order unless the strategy has none.
func (s *sourceSession) expect(want ...string) []relay.Delivery {
	s.c.Helper()
	got := s.read(len(want))
	g, w := texts(got), want
	if s.c.h.NoOrder {
		slices.Sort(g)
		w = slices.Sorted(slices.Values(want))
	}
	if !slices.Equal(g, w) {
		s.c.Fatalf("read %q, want %q", g, w)
	}
	return got
}

// nothing fails if another message comes. Afterwards the session can't read any more: the only way to end a read that
// gets nothing is to cancel it.
func (s *sourceSession) nothing() {
	s.c.Helper()
	// A message that must not come would come before this one.
	s.c.write(note("sentinel", "sentinel"))
	if got := texts(s.read(1)); got[0] != "sentinel" {
		s.c.Fatalf("read %q, want nothing", got)
	}
}

func (s *sourceSession) settle(x relay.Settlement) {
	s.c.Helper()
	s.c.check("settle", s.Settle(s.c.ctx, x))
}

func (s *sourceSession) through(d *relay.Delivery) {
	s.c.Helper()
	s.settle(relay.Settlement{Through: d, Delivered: 1})
}

// lanesNow lists all held lanes, page by page.
func (s *sourceSession) lanesNow() (all []string) {
	s.c.Helper()
	passed := map[string]bool{}
	for after := ""; ; {
		page, next, err := s.Lanes(s.c.ctx, after, 3)
		s.c.check("lanes", err)
		if len(page) > 3 {
			s.c.Fatalf("%d lanes, 3 asked for", len(page))
		}
		all = append(all, page...)
		if next == "" {
			return all
		}
		if passed[next] {
			s.c.Fatalf("the list comes to lane %q again", next)
		}
		passed[next], after = true, next
	}
}

// due lists lanes that are due, or will be.
func (s *sourceSession) due(q relay.DueQuery) map[string]relay.HeldLane {
	s.c.Helper()
	if q.Limit == 0 {
		q.Limit = 1000
	}
	list, err := s.Due(s.c.ctx, q)
	s.c.check("due", err)
	lanes := make(map[string]relay.HeldLane)
	for _, l := range list {
		if _, twice := lanes[l.Lane]; twice {
			s.c.Errorf("lane %q is listed twice", l.Lane)
		}
		lanes[l.Lane] = l
	}
	return lanes
}

func (s *sourceSession) held(lane string, limit int) []relay.Delivery {
	s.c.Helper()
	lists, err := s.Held(s.c.ctx, []string{lane}, limit)
	s.c.check("held", err)
	return lists[0]
}

func texts(ds []relay.Delivery) []string {
	all := make([]string, len(ds))
	for i := range ds {
		all[i] = string(ds[i].Payload)
	}
	return all
}

func copyOf(d *relay.Delivery) relay.Delivery {
	c := *d
	c.Topic, c.Key, c.AggregateType, c.AggregateID = strings.Clone(d.Topic),
		strings.Clone(d.Key), strings.Clone(d.AggregateType), strings.Clone(d.AggregateID)
	c.EventType, c.ContentType, c.Payload = strings.Clone(d.EventType), strings.Clone(d.ContentType), bytes.Clone(d.Payload)
	c.Headers = nil
	for _, h := range d.Headers {
		c.Headers = append(c.Headers, outbox.Header{Name: strings.Clone(h.Name), Value: strings.Clone(h.Value)})
	}
	return c
}

func (c *sourceCase) everyFieldArrives() {
	full := outbox.Message{
		ID: outbox.NewID(), Topic: "orders.placed", Key: "k-ü", AggregateType: "order", AggregateID: "o-1", EventType: "placed",
		Payload: []byte("\x00\xff{}"), ContentType: "application/json",
		Headers:   []outbox.Header{{Name: "a", Value: ""}, {Name: "b", Value: `q"\/ü` + "\t\u2028𝄞"}},
		DeliverAt: time.Date(2035, 1, 2, 3, 4, 5, 678901000, time.UTC),
	}
	bare := outbox.Message{ID: outbox.NewID(), Topic: "t"}
	empty := outbox.Message{ID: outbox.NewID(), Topic: "t", AggregateID: "o-2", Payload: []byte{}}
	began := time.Now()
	c.write(full, bare, empty)
	s := c.session(SourceOptions{})
	byID := make(map[outbox.ID]relay.Delivery)
	for _, d := range s.read(3) {
		byID[d.ID] = d
	}
	for _, want := range []outbox.Message{full, bare, empty} {
		d, ok := byID[want.ID]
		if !ok {
			c.Errorf("message %s did not come", want.ID)
			continue
		}
		if d.Invalid != nil {
			c.Errorf("message %s is invalid: %v", want.ID, d.Invalid)
		}
		if d.Position <= 0 || d.Shard < 0 || d.Shard > 63 || d.Attempts != 0 || d.Blocked || !d.RetryAt.IsZero() {
			c.Errorf("position %d, shard %d, attempts %d, blocked %v, retry at %v", d.Position, d.Shard, d.Attempts, d.Blocked, d.RetryAt)
		}
		if d.CreatedAt.Before(began.Add(-time.Hour)) || d.CreatedAt.After(time.Now().Add(time.Hour)) {
			c.Errorf("created at %v", d.CreatedAt)
		}
		if !d.DeliverAt.Equal(want.DeliverAt) {
			c.Errorf("deliver at %v, want %v", d.DeliverAt, want.DeliverAt)
		}
		if (d.Payload == nil) != (want.Payload == nil) {
			c.Errorf("payload %#v, want %#v", d.Payload, want.Payload)
		}
		slices.SortFunc(d.Headers, func(a, b outbox.Header) int { return strings.Compare(a.Name, b.Name) })
		got := d.Message
		got.Position, got.CreatedAt, got.DeliverAt = 0, time.Time{}, time.Time{}
		want.DeliverAt = time.Time{}
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			c.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
}

func (c *sourceCase) rolledBack() {
	s := c.session(SourceOptions{})
	tx := c.begin()
	c.check("insert", tx.Insert(c.ctx, note("k", "rolled back")))
	c.check("rollback", tx.Rollback(c.ctx))
	tx = c.begin()
	c.check("insert", tx.Insert(c.ctx, note("k", "a")))
	c.check("savepoint", tx.Savepoint(c.ctx, func() error { return tx.Insert(c.ctx, note("k", "undone")) }))
	c.check("insert", tx.Insert(c.ctx, note("k", "b")))
	c.check("commit", tx.Commit(c.ctx))
	s.expect("a", "b")
	s.nothing()
}

func (c *sourceCase) lateCommit() {
	s := c.session(SourceOptions{})
	tx := c.begin()
	c.check("insert", tx.Insert(c.ctx, note("early", "late")))
	c.write(note("k", "a"))
	if !c.h.WaitsForWriters {
		ds := s.expect("a")
		s.through(&ds[0])
	}
	c.check("commit", tx.Commit(c.ctx))
	if c.h.WaitsForWriters {
		s.expect("late", "a")
	} else {
		s.expect("late")
	}
	s.nothing()
}

func (c *sourceCase) openTransaction() {
	tx := c.begin()
	c.check("insert", tx.Insert(c.ctx, note("slow", "slow")))
	s := c.session(SourceOptions{})
	for i := range 20 {
		text := strconv.Itoa(i)
		c.write(note("k", text))
		ds := s.expect(text)
		s.through(&ds[0])
	}
	// It may also outlive the session.
	s.close()
	s = c.session(SourceOptions{})
	c.write(note("k", "more"))
	ds := s.expect("more")
	s.through(&ds[0])
	c.check("commit", tx.Commit(c.ctx))
	s.expect("slow")
}

func (c *sourceCase) batches() {
	c.write(notes("k", 1, 100)...)
	s := c.session(SourceOptions{})
	var open []relay.Batch
	var want, got []string
	for n := 0; n < 100; {
		batch, err := s.Next(c.ctx, 7)
		c.check("next", err)
		if len(batch.Deliveries) > 7 {
			c.Fatalf("a batch of %d, want at most 7", len(batch.Deliveries))
		}
		n += len(batch.Deliveries)
		open = append(open, batch)
	}
	for i := 1; i <= 100; i++ {
		want = append(want, strconv.Itoa(i))
	}
	for i, batch := range open {
		got = append(got, texts(batch.Deliveries)...)
		if batch.Recycle != nil && i%2 == 0 {
			batch.Recycle() // the others' memory must not be touched by that
		}
	}
	if c.h.NoOrder {
		slices.Sort(got)
		slices.Sort(want)
	}
	if !slices.Equal(got, want) {
		c.Errorf("got %q", got)
	}
}

func (c *sourceCase) settleInTheMiddle() {
	source := c.open(SourceOptions{})
	c.write(notes("k", 1, 5)...)
	s := c.acquire(source)
	ds := s.expect("1", "2", "3", "4", "5")
	s.through(&ds[1])
	c.write(notes("k", 6, 7)...)
	s.expect("6", "7")
	s.through(&ds[3])
	s.close()
	s = c.acquire(source)
	ds = s.expect("5", "6", "7")
	s.through(&ds[2])
	s.close()
	s = c.acquire(source)
	s.nothing()
}

func (c *sourceCase) crashRepeats() {
	if c.h.RepeatsMoreAfter {
		c.crashRepeatsMore()
		return
	}
	source := c.open(SourceOptions{})
	s := c.acquire(source)
	total := 0
	var settled, unsettled []string
	for round := range 6 {
		if len(unsettled) > 0 {
			s.expect(unsettled...)
			unsettled = nil
			s.crash() // it does so as often as one likes
			s = c.acquire(source)
		}
		for range 3 { // three transactions, which may make three windows
			c.write(notes("k", total+1, total+4)...)
			total += 4
		}
		ds := s.read(total - len(settled))
		at := (round*5 + 3) % len(ds)
		s.through(&ds[at])
		settled = append(settled, texts(ds[:at+1])...)
		unsettled = texts(ds[at+1:])
		s.crash()
		s = c.acquire(source)
	}
	s.expect(unsettled...)
}

// crashRepeatsMore is crashRepeats where settled messages may come again: none that was not settled may be
// missing, and what a session that was closed has settled must not come.
func (c *sourceCase) crashRepeatsMore() {
	source := c.open(SourceOptions{})
	total := 0
	unsettled := make(map[string]bool)
	for round := range 6 {
		s := c.acquire(source)
		for range 3 {
			c.write(notes("k", total+1, total+4)...)
			for i := range 4 {
				unsettled[strconv.Itoa(total+1+i)] = true
			}
			total += 4
		}
		missing := maps.Clone(unsettled)
		var ds []relay.Delivery
		for len(missing) > 0 {
			d := s.read(1)
			delete(missing, string(d[0].Payload))
			ds = append(ds, d...)
		}
		at := (round*5 + 3) % len(ds)
		s.through(&ds[at])
		for i := range ds[:at+1] {
			delete(unsettled, string(ds[i].Payload))
		}
		s.crash()
	}
	s := c.acquire(source)
	var last relay.Delivery
	for len(unsettled) > 0 {
		last = s.read(1)[0]
		delete(unsettled, string(last.Payload))
	}
	s.through(&last)
	s.close()
	c.acquire(source).nothing()
}

// crashBehindHold has messages without a key, each of which is a lane of its own.
func (c *sourceCase) crashBehindHold() {
	source := c.open(SourceOptions{})
	c.write(note("", "1"), note("", "2"), note("", "3"))
	s := c.acquire(source)
	ds := s.expect("1", "2", "3")
	s.settle(relay.Settlement{Through: &ds[2], Delivered: 2,
		Hold: []relay.Hold{{Delivery: &ds[1], RetryAt: time.Now().Add(time.Hour), Err: errors.New("not now")}}})
	s.crash()
	s = c.acquire(source)
	c.write(note("", "sentinel"))
	var again []string
	for {
		text := string(s.read(1)[0].Payload)
		if text == "sentinel" {
			break
		}
		again = append(again, text)
	}
	switch {
	case c.h.RepeatsBehindHolds:
		if !slices.Equal(again, []string{"2", "3"}) {
			c.Errorf("after the crash %q came, want what was settled behind the hold and the hold", again)
		}
	case !c.h.CallsForHolds:
		if len(again) > 0 {
			c.Errorf("after the crash %q came again, want nothing: the hold is kept apart", again)
		}
	default: // the message that waits is a row that is to be delivered; it may have a time of its own
		if len(again) > 1 || len(again) == 1 && again[0] != "2" {
			c.Errorf("after the crash %q came again, want no more than the message that waits", again)
		}
	}
}

func (c *sourceCase) wholeTransactions() {
	source := c.open(SourceOptions{})
	c.writeTogether(notes("k", 1, 2)...)
	c.writeTogether(notes("k", 3, 5)...)
	for _, crash := range []bool{false, true} {
		s := c.acquire(source)
		ds := s.expect("1", "2", "3", "4", "5")
		s.through(&ds[0])
		if crash {
			s.crash()
		} else {
			s.close()
		}
	}
	s := c.acquire(source)
	ds := s.expect("1", "2", "3", "4", "5")
	s.through(&ds[3])
	s.close()
	s = c.acquire(source)
	ds = s.expect("3", "4", "5")
	s.through(&ds[2])
	s.close()
	c.acquire(source).nothing()
}

func (c *sourceCase) interrupted() {
	source := c.open(SourceOptions{})
	c.write(notes("k", 1, 3)...)
	s := c.acquire(source)
	ds := s.expect("1", "2", "3")
	ended, cancel := context.WithCancel(c.ctx)
	done := make(chan error, 1)
	go func() {
		_, err := s.Next(ended, 10)
		done <- err
	}()
	cancel()
	select {
	case <-done:
	case <-c.ctx.Done():
		c.Fatal("Next goes on though its context has ended")
	}
	s.through(&ds[2])
	s.close()
	c.acquire(source).nothing()
}

// concurrentWriters is a small version of what a strategy should be put to in its own tests.
func (c *sourceCase) concurrentWriters() {
	const writers, transactions, keys = 6, 60, 7
	const end = "end/1" // a reader that waits for more than there is would wait forever, so it waits for this
	var (
		mu        sync.Mutex
		committed = make(map[string]bool)
		numbers   = make(map[string]int)
		wg        sync.WaitGroup
		faults    = make(chan error, writers+1)
	)
	number := func(key string) int {
		mu.Lock()
		defer mu.Unlock()
		numbers[key]++
		return numbers[key]
	}
	write := func(r *rand.Rand) error {
		tx, err := c.h.Begin(c.ctx)
		if err != nil {
			return err
		}
		taken := make(map[int]bool)
		for range 1 + r.IntN(3) {
			taken[r.IntN(keys)] = true
		}
		if c.h.WritersQueue { // or one waits for a key and has the others wait for it
			for _, k := range slices.Sorted(maps.Keys(taken)) {
				if err := tx.Lock(c.ctx, strconv.Itoa(k)); err != nil {
					return err
				}
			}
		}
		var mine []string
		for _, k := range slices.Sorted(maps.Keys(taken)) { // in order, to avoid deadlocks
			key := strconv.Itoa(k)
			if err := tx.Lock(c.ctx, key); err != nil {
				return err
			}
			insert := func() error {
				text := fmt.Sprintf("%s/%d", key, number(key))
				mine = append(mine, text)
				return tx.Insert(c.ctx, note(key, text))
			}
			if r.IntN(8) == 0 {
				if err := tx.Savepoint(c.ctx, insert); err != nil {
					return err
				}
				mine = mine[:len(mine)-1]
			}
			if err := insert(); err != nil {
				return err
			}
		}
		if r.IntN(10) == 0 {
			return tx.Rollback(c.ctx)
		}
		// Noted before, or a delivery could come first.
		mu.Lock()
		for _, text := range mine {
			committed[text] = true
		}
		mu.Unlock()
		return tx.Commit(c.ctx)
	}
	committed[end] = true
	for range writers {
		r := seed.Rand(c.T)
		wg.Go(func() {
			for range transactions {
				if err := write(r); err != nil {
					faults <- err
					return
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wg.Wait()
		tx, err := c.h.Begin(c.ctx)
		if err == nil {
			err = tx.Insert(c.ctx, note("end", end))
		}
		if err == nil {
			err = tx.Commit(c.ctx)
		}
		if err != nil {
			faults <- err
		}
	}()
	defer func() { <-ended }()

	s := c.session(SourceOptions{})
	seen := make(map[string]bool)
	last := make(map[string]int)
	unread := func() bool { // once the end was seen, nothing is committed any more
		mu.Lock()
		defer mu.Unlock()
		return !seen[end] || len(seen) < len(committed)
	}
	for unread() {
		for _, d := range s.read(1) {
			text := string(d.Payload)
			key, n, _ := strings.Cut(text, "/")
			at, _ := strconv.Atoi(n)
			mu.Lock()
			known := committed[text]
			mu.Unlock()
			switch {
			case !known:
				c.Errorf("%s came, and was rolled back", text)
			case seen[text]:
				c.Errorf("%s came twice", text)
			case !c.h.NoOrder && at < last[key]:
				c.Errorf("%s came after %d", text, last[key])
			}
			seen[text], last[key] = true, at
			s.through(&d)
		}
		select {
		case err := <-faults:
			c.Fatalf("write: %v", err)
		default:
		}
	}
	s.nothing()
}

func (c *sourceCase) oneOwner() {
	first := c.session(SourceOptions{Relay: "one"})
	standby := c.open(SourceOptions{Relay: "two"}) // the relays of a table have the same lease
	waiting, cancel := context.WithTimeout(c.ctx, await.Expiry(500*time.Millisecond))
	defer cancel()
	if _, err := standby.Acquire(waiting); !errors.Is(err, context.DeadlineExceeded) {
		c.Fatalf("the second relay's Acquire returned %v, want its context's end", err)
	}
	acquired := make(chan relay.Session)
	go func() {
		session, err := standby.Acquire(c.ctx)
		if err != nil {
			c.Errorf("acquire: %v", err)
		}
		acquired <- session
	}()
	c.write(notes("k", 1, 3)...)
	ds := first.expect("1", "2", "3")
	first.through(&ds[0])
	select {
	case <-acquired:
		c.Fatal("two relays own a shard group")
	default:
	}
	first.close()
	session := <-acquired
	if session == nil {
		return
	}
	second := &sourceSession{Session: session, c: c}
	second.expect("2", "3")
	second.close()
}

func (c *sourceCase) oneSession() {
	source := c.open(SourceOptions{})
	first := c.acquire(source)
	if _, err := source.Acquire(c.ctx); !errors.Is(err, relay.ErrActive) || !outbox.IsPermanent(err) {
		c.Errorf("a second Acquire returned %v, want relay.ErrActive, marked by outbox.Permanent", err)
	}
	first.close()
	c.acquire(source).close()
}

// recognize tries brokers with names that have nothing, something or all in common. Where there is no place to record
// them, none is refused.
func (c *sourceCase) recognize() {
	known := func(s *sourceSession, names ...string) {
		c.Helper()
		c.check("recognize "+strings.Join(names, " "), s.Recognize(c.ctx, names))
	}
	first := c.session(SourceOptions{Relay: "one"})
	known(first, "a", "b")
	known(first, "b", "c") // one address of a list was replaced, and later another
	known(first, "c", "d")
	first.close()
	second := c.session(SourceOptions{Relay: "two"})
	err := second.Recognize(c.ctx, []string{"a", "b"})
	switch {
	case c.h.Forgets && err != nil:
		c.Errorf("a broker was refused, and nothing records which one it has to be: %v", err)
	case c.h.Forgets:
	case !outbox.IsPermanent(err):
		c.Errorf("another broker: %v, want an error marked by outbox.Permanent", err)
	default:
		for _, part := range []string{"orders", "c = d", "a = b", "one", "outbox destinations move orders"} {
			if !strings.Contains(err.Error(), part) {
				c.Errorf("the refusal lacks %q: %v", part, err)
			}
		}
	}
	second.close() // and gives the lease back
	third := c.session(SourceOptions{Relay: "three"})
	known(third, "d")
	if !c.h.OneDestination {
		known(c.session(SourceOptions{Destination: "other"}), "a")
	}
}

func (c *sourceCase) staleEpoch() {
	source := c.open(SourceOptions{Relay: "one", Lease: shortLease})
	c.write(notes("k", 1, 4)...)
	old := c.acquire(source)
	ds := old.expect("1", "2", "3", "4")
	old.through(&ds[0])
	var s *sourceSession
	if c.h.Hang != nil {
		c.h.Hang(old.Session)
		s = c.session(SourceOptions{Relay: "two"})
	} else {
		// The same relay, somewhere else: it takes the lease back without waiting.
		s = c.session(SourceOptions{Relay: "one"})
	}
	err := old.Settle(c.ctx, relay.Settlement{
		Through: &ds[2], Delivered: 1,
		Hold: []relay.Hold{{Delivery: &ds[1], RetryAt: time.Now()}},
		Dead: []relay.Dead{{Delivery: &ds[2], Reason: relay.ReasonRefused, Err: errors.New("no")}},
	})
	if !errors.Is(err, relay.ErrLeaseLost) {
		c.Errorf("the stale session's Settle returned %v, want ErrLeaseLost", err)
	}
	if time.Now().Before(old.Expires()) {
		c.Error("the stale session says that its lease lasts")
	}
	if err := old.Close(c.ctx); err != nil && !errors.Is(err, relay.ErrLeaseLost) {
		c.Errorf("close: %v", err)
	}
	old.over = true
	s.expect("2", "3", "4")
	if lanes := s.lanesNow(); len(lanes) != 0 {
		c.Errorf("the stale session made holds: %v", lanes)
	}
	dead, err := c.h.DeadLetters(c.ctx, "orders")
	c.check("read dead letters", err)
	if len(dead) != 0 {
		c.Errorf("the stale session made dead letters: %v", dead)
	}
}

// lostConnection is staleEpoch where a session can't be superseded, but only cut off.
func (c *sourceCase) lostConnection() {
	source := c.open(SourceOptions{Relay: "one"})
	c.write(notes("k", 1, 4)...)
	old := c.acquire(source)
	ds := old.expect("1", "2", "3", "4")
	old.through(&ds[0])
	old.crash()
	s := c.session(SourceOptions{Relay: "one"})
	err := old.Settle(c.ctx, relay.Settlement{
		Through: &ds[2], Delivered: 1,
		Dead: []relay.Dead{{Delivery: &ds[2], Reason: relay.ReasonRefused, Err: errors.New("no")}},
	})
	if !errors.Is(err, relay.ErrLeaseLost) {
		c.Errorf("the session that was cut off settled: %v, want ErrLeaseLost", err)
	}
	if time.Now().Before(old.Expires()) {
		c.Error("the session that was cut off says that its lease lasts")
	}
	s.expect("2", "3", "4")
	dead, err := c.h.DeadLetters(c.ctx, "orders")
	c.check("read dead letters", err)
	if len(dead) != 0 {
		c.Errorf("the session that was cut off made dead letters: %v", dead)
	}
}

func (c *sourceCase) leaseLasts() {
	s := c.session(SourceOptions{Lease: shortLease})
	first := s.Expires()
	for !s.Expires().After(first) {
		if c.ctx.Err() != nil {
			c.Fatal("the lease was not renewed")
		}
		c.write(note("k", "x"))
		ds := s.read(1)
		s.through(&ds[0])
	}
	if left := time.Until(s.Expires()); left > shortLease {
		c.Errorf("the lease of %v lasts for another %v", shortLease, left)
	}
}

func (c *sourceCase) deadLetters() {
	source := c.open(SourceOptions{})
	s := c.acquire(source)
	c.write(notes("k", 1, 3)...)
	ds := s.expect("1", "2", "3")
	ds[1].Attempts = 4
	cause := errors.New("too large \x00 \xff")
	s.settle(relay.Settlement{
		Through: &ds[2], Delivered: 2,
		Dead: []relay.Dead{{Delivery: &ds[1], Reason: relay.ReasonRefused, Err: cause}},
	})
	s.close()
	c.acquire(source).nothing()
	dead, err := c.h.DeadLetters(c.ctx, "orders")
	c.check("read dead letters", err)
	if len(dead) != 1 || dead[0].Payload != "2" || dead[0].ID != ds[1].ID || dead[0].Attempts != 4 ||
		dead[0].Reason != relay.ReasonRefused || !strings.HasPrefix(dead[0].Error, "too large") {
		c.Errorf("got %+v", dead)
	}
}

func (c *sourceCase) holds() {
	source := c.open(SourceOptions{})
	s := c.acquire(source)
	c.write(notes("k", 1, 4)...)
	c.write(note("other", "5"))
	ds := s.expect("1", "2", "3", "4", "5")
	ds[0].Attempts = 2
	s.settle(relay.Settlement{
		Through: &ds[4], Delivered: 2,
		Hold: []relay.Hold{
			{Delivery: &ds[0], RetryAt: time.Now().Add(time.Hour), Err: errors.New("refused")},
			{Delivery: &ds[1]}, {Delivery: &ds[2]},
		},
	})
	// Holds are the database's: a successor has them.
	s.crash()
	s = c.acquire(source)
	if lanes := s.lanesNow(); !slices.Equal(lanes, []string{"k"}) {
		c.Errorf("lanes %q", lanes)
	}
	if left := time.Until(s.due(relay.DueQuery{})["k"].Due); left < 50*time.Minute || left > 70*time.Minute {
		c.Errorf("the lane is due in %v, want an hour", left)
	}
	held := s.held("k", 10)
	if got := texts(held); !slices.Equal(got, []string{"1", "2", "3"}) {
		c.Fatalf("held %q", got)
	}
	if d := held[0]; d.Attempts != 2 || d.RetryAt.IsZero() || d.ID != ds[0].ID || d.Topic != "t" || d.Lane() != "k" ||
		d.Position != ds[0].Position || d.Shard != ds[0].Shard || !d.CreatedAt.Equal(ds[0].CreatedAt) {
		c.Errorf("the head came back as %+v", d)
	}
	if !held[1].RetryAt.IsZero() || held[1].Blocked {
		c.Errorf("a hold behind the head is due at %v, blocked %v", held[1].RetryAt, held[1].Blocked)
	}
	if got := s.held("k", 2); len(got) != 2 {
		c.Errorf("%d holds, 2 asked for", len(got))
	}

	held[0].Attempts = 3
	s.settle(relay.Settlement{HeldRetry: []relay.Hold{{Delivery: &held[0], RetryAt: time.Now().Add(-time.Hour), Err: errors.New("again")}}})
	if due := s.due(relay.DueQuery{})["k"].Due; due.IsZero() || time.Until(due) > time.Minute {
		c.Errorf("the lane is due at %v, want now", due)
	}
	s.settle(relay.Settlement{HeldDelivered: []*relay.Delivery{&held[0]}, Delivered: 1})
	if lanes := s.lanesNow(); !slices.Equal(lanes, []string{"k"}) {
		c.Errorf("after its head was delivered, the lanes are %q", lanes)
	}
	if due := s.due(relay.DueQuery{})["k"].Due; due.IsZero() || time.Until(due) > time.Minute {
		c.Errorf("after its head was delivered and all lanes were listed, the lane is due at %v, want now", due)
	}
	s.settle(relay.Settlement{HeldDead: []relay.Dead{{Delivery: &held[1], Reason: relay.ReasonExhausted, Err: errors.New("enough")}}})
	s.settle(relay.Settlement{HeldRetry: []relay.Hold{{Delivery: &held[2], Blocked: true}}})
	if lanes, due := s.lanesNow(), s.due(relay.DueQuery{}); !slices.Equal(lanes, []string{"k"}) || len(due) > 0 {
		c.Errorf("the lane is blocked: lanes %q, due %v", lanes, due)
	}
	s.settle(relay.Settlement{HeldDelivered: []*relay.Delivery{&held[2]}})
	if lanes := s.lanesNow(); len(lanes) != 0 {
		c.Errorf("lanes %v after the last hold", lanes)
	}
	dead, err := c.h.DeadLetters(c.ctx, "orders")
	c.check("read dead letters", err)
	if len(dead) != 1 || dead[0].Payload != "2" || dead[0].Reason != relay.ReasonExhausted || dead[0].Error != "enough" {
		c.Errorf("dead letters %+v", dead)
	}
	s.nothing()
}

func (c *sourceCase) lanes() {
	s := c.session(SourceOptions{})
	var ms []outbox.Message
	for i := range 50 {
		ms = append(ms, note("key "+strconv.Itoa(i%10), strconv.Itoa(i)))
	}
	ms = append(ms, outbox.Message{Topic: "t", AggregateID: "aggregate"})
	ms = append(ms, slices.Repeat([]outbox.Message{{Topic: "t"}}, 20)...) // pages of them
	c.write(ms...)
	ds := s.read(len(ms))
	var hold []relay.Hold
	var want []string
	shards := make(map[string]int)
	for i := range ds {
		h := relay.Hold{Delivery: &ds[i]}
		if _, behind := shards[ds[i].Lane()]; !behind {
			h.RetryAt = time.Now().Add(-time.Minute)
			if ds[i].OrderingKey() != "" {
				want = append(want, strings.Clone(ds[i].Lane()))
			}
		}
		shards[strings.Clone(ds[i].Lane())] = ds[i].Shard
		hold = append(hold, h)
	}
	s.settle(relay.Settlement{Through: &ds[len(ds)-1], Hold: hold})
	lanes := s.lanesNow()
	slices.Sort(lanes)
	slices.Sort(want)
	if !slices.Equal(lanes, want) {
		c.Errorf("lanes of keys %q, want %q", lanes, want)
	}
	due := s.due(relay.DueQuery{})
	for lane, shard := range shards {
		if l, ok := due[lane]; !ok || l.Shard != shard || time.Until(l.Due) > 0 {
			c.Errorf("lane %q: %+v, want shard %d, due", lane, l, shard)
		}
	}
	if len(due) != len(shards) {
		c.Errorf("%d lanes are due, want %d", len(due), len(shards))
	}
}

// dueLanes holds one message of each key, whose first letter is its topic. Of topic x all are due in an hour.
func (c *sourceCase) dueLanes() {
	s := c.session(SourceOptions{})
	var ms []outbox.Message
	for _, key := range []string{"a1", "a2", "a3", "b1", "b2", "x1", "x2", "blocked"} {
		ms = append(ms, outbox.Message{Topic: key[:1], Key: key})
	}
	c.write(ms...)
	ds := s.read(len(ms))
	var hold []relay.Hold
	for i := range ds {
		h := relay.Hold{Delivery: &ds[i], RetryAt: time.Now().Add(time.Duration(i-100) * time.Second), Blocked: ds[i].Key == "blocked"}
		if ds[i].Topic == "x" {
			h.RetryAt = time.Now().Add(time.Hour + time.Duration(i)*time.Minute)
		}
		hold = append(hold, h)
	}
	s.settle(relay.Settlement{Through: &ds[len(ds)-1], Hold: hold})
	routes := func(topics ...string) (list []relay.Route) {
		for _, topic := range topics {
			for i := range ds {
				r := relay.Route{Topic: topic, AggregateType: ds[i].AggregateType, EventType: ds[i].EventType}
				if ds[i].Topic == topic && !slices.Contains(list, r) {
					list = append(list, r)
				}
			}
		}
		return list
	}
	for _, x := range []struct {
		query relay.DueQuery
		want  string
	}{
		{relay.DueQuery{}, "a1 a2 a3 b1 b2 x1"},
		{relay.DueQuery{Limit: 2}, "a1 a2"},
		{relay.DueQuery{Closed: routes("a")}, "b1 b2 x1"},
		{relay.DueQuery{Closed: routes("a", "x")}, "b1 b2"},
		{relay.DueQuery{Limit: 1, Closed: routes("a")}, "b1"},
		{relay.DueQuery{Probes: routes("a")}, "a1 b1 b2 x1"},
		{relay.DueQuery{Limit: 1, Probes: routes("a", "x")}, "a1 b1 x1"},
		{relay.DueQuery{Paused: []relay.Pause{{Topic: "a"}, {Lane: "b1"}}}, "b2 x1"},
		{relay.DueQuery{Paused: []relay.Pause{{Topic: "a", Lane: "a1"}, {Topic: "a", Lane: "b1"}, {Topic: "x"}}}, "a2 a3 b1 b2"},
	} {
		due := s.due(x.query)
		var got []string
		for lane, l := range due {
			if l.Route.Topic != lane[:1] {
				c.Errorf("lane %s has route %+v", lane, l.Route)
			}
			if lane[0] != 'x' || x.query.Limit != 1 && x.query.Limit != 2 || len(x.query.Probes) > 0 {
				got = append(got, lane) // what is due later may be left out where more is due
			}
		}
		slices.Sort(got)
		if list := strings.Join(got, " "); list != x.want {
			c.Errorf("%+v: due are %s, want %s", x.query, list, x.want)
		}
	}
}

// holdBehindNothing is a message that is to wait behind holds that somebody has removed.
func (c *sourceCase) holdBehindNothing() {
	s := c.session(SourceOptions{})
	c.write(notes("k", 1, 3)...)
	ds := s.expect("1", "2", "3")
	s.settle(relay.Settlement{Through: &ds[1], Hold: []relay.Hold{{Delivery: &ds[0]}, {Delivery: &ds[1]}}})
	if due := s.due(relay.DueQuery{})["k"].Due; due.IsZero() || time.Until(due) > time.Second {
		c.Errorf("a message behind nothing is due at %v, want at once", due)
	}
	if held := s.held("k", 10); len(held) != 2 {
		c.Errorf("held %q", texts(held))
	}
	s.settle(relay.Settlement{Through: &ds[2], Hold: []relay.Hold{{Delivery: &ds[2]}}})
	if held := s.held("k", 10); len(held) != 3 || !held[2].RetryAt.IsZero() {
		c.Errorf("behind others: held %q, the last due at %v", texts(held), held[len(held)-1].RetryAt)
	}
}

func (c *sourceCase) destinations() {
	c.write(notes("k", 1, 3)...)
	a := c.session(SourceOptions{Destination: "a"})
	ds := a.expect("1", "2", "3")
	a.settle(relay.Settlement{Through: &ds[2], Hold: []relay.Hold{{Delivery: &ds[0], Blocked: true}}})
	b := c.session(SourceOptions{Destination: "b"})
	b.expect("1", "2", "3")
	if lanes := b.lanesNow(); len(lanes) != 0 {
		c.Errorf("holds of another destination: %v", lanes)
	}
	a.nothing()
}

func (c *sourceCase) groups() {
	const groups, total = 3, 300
	var ms []outbox.Message
	for i := range total {
		ms = append(ms, note("key "+strconv.Itoa(i%60), strconv.Itoa(i)))
	}
	c.write(ms...)
	// What comes after: enough keys for every group to get one.
	var sentinels []outbox.Message
	for i := range 100 {
		sentinels = append(sentinels, note("sentinel "+strconv.Itoa(i), "sentinel"))
	}
	c.write(sentinels...)
	// All groups at once, each as far as it likes: between them they have every message.
	type result struct {
		group int
		d     relay.Delivery
		err   error
	}
	results := make(chan result)
	ctx, cancel := context.WithCancel(c.ctx)
	var reading sync.WaitGroup
	for group := range groups {
		s := c.session(SourceOptions{Group: group, Groups: groups})
		reading.Go(func() {
			for ctx.Err() == nil {
				batch, err := s.Next(ctx, 50)
				for i := range batch.Deliveries {
					results <- result{group: group, d: copyOf(&batch.Deliveries[i])}
				}
				if err != nil && ctx.Err() == nil {
					results <- result{err: err}
					return
				}
			}
		})
	}
	go func() {
		reading.Wait()
		close(results)
	}()
	seen, owners := make(map[string]int), make(map[int]int)
	came := 0
	for r := range results {
		if r.err != nil {
			cancel()
			c.Errorf("next: %v", r.err)
			continue
		}
		if owner, known := owners[r.d.Shard]; known && owner != r.group {
			c.Errorf("shard %d came in group %d and in group %d", r.d.Shard, owner, r.group)
		}
		owners[r.d.Shard] = r.group
		if string(r.d.Payload) != "sentinel" {
			seen[string(r.d.Payload)]++
		}
		if came++; came == total+len(sentinels) {
			cancel()
		}
	}
	cancel()
	if len(seen) != total {
		c.Errorf("%d messages came, want %d", len(seen), total)
	}
	for text, n := range seen {
		if n != 1 {
			c.Errorf("%s came %d times", text, n)
		}
	}
}
