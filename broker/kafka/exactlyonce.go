package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
	"github.com/twmb/franz-go/pkg/kerr"
)

// ExactlyOnce publishes each message once for consumers that read committed records (isolation.level=read_committed),
// even if processes crash, freeze or are cut off. It is the broker of one shard group of one destination, whose source
// must be wrapped by Source.
//
// Each call is a Kafka transaction on one of several transactional ids, and is answered when the transaction is
// committed. With the messages, the transaction writes a record to the cursor topic, which names all messages that this
// id has published and that may not be settled in the database. A session begins by fencing all ids and reading the
// topic; the messages that it finds there are accepted without being sent. docs/design.md has the argument.
type ExactlyOnce struct {
	broker *Broker
	id     string
	group  int
	topic  string // the topic of the cursors
	open   *unsettled

	seats chan *seat // free seats, the longest unused first
	all   []*seat

	// gate is read-locked by calls that publish, and write-locked to take up the transactional ids.
	gate    sync.RWMutex
	ready   atomic.Bool // all ids are taken up, and no outcome is unknown
	session *session    // nil: none. Changed while gate is write-locked
	fresh   bool        // the session has not yet taken up the ids
	tried   bool        // but has begun to
}

var _ relay.Broker = (*ExactlyOnce)(nil)

// ExactlyOnceConfig configures an ExactlyOnce, in addition to Config. Only ID is required.
type ExactlyOnceConfig struct {
	// ID begins the transactional ids, which end with the shard group and a number. It must be unique among all
	// destinations, of any outbox, in one cluster. Relays of one destination must have the same ID. Required.
	ID string

	// Group is the shard group. Default 0.
	Group int

	// CursorTopic is the topic of the transactions' records: one for each destination, with one partition, compacted.
	// Config.CreateTopics creates it. Default ID + "-cursor".
	CursorTopic string
}

// ids is the number of transactional ids: twice the engine's concurrent calls, so that a transaction's end has reached
// all partitions before its id is used again.
const ids = 4

// NewExactlyOnce returns an ExactlyOnce. It reports all faults together and doesn't connect. It ignores Config.Clients.
func NewExactlyOnce(cfg Config, exactly ExactlyOnceConfig) (*ExactlyOnce, error) {
	var faults settings.Faults
	b, err := New(cfg)
	faults.Add("", err)
	faults.Need(exactly.ID != "", "ID", "not given; exactly-once needs a transactional id")
	faults.Need(exactly.Group >= 0, "Group", "%d, it must not be negative", exactly.Group)
	settings.Default(&exactly.CursorTopic, exactly.ID+cursorSuffix)
	fault := topicFault(exactly.CursorTopic)
	faults.Need(fault == "", "CursorTopic", "%q: a topic %s", exactly.CursorTopic, fault)
	if err := faults.Err(); err != nil {
		if b != nil {
			err = errors.Join(err, b.Close())
		}
		return nil, fmt.Errorf("kafka: %w", err)
	}
	b.topic.cursors = exactly.CursorTopic
	e := &ExactlyOnce{broker: b, id: exactly.ID, group: exactly.Group, topic: exactly.CursorTopic,
		open: newUnsettled(), seats: make(chan *seat, ids)}
	for n := range ids {
		s := newSeat(&b.cluster)
		s.tx = &transactor{id: e.transactionalID(e.group, n), open: e.open}
		s.tx.record.Topic, s.tx.record.Key = e.topic, []byte(cursorKey+s.tx.id)
		e.all = append(e.all, s)
		e.seats <- s
	}
	return e, nil
}

// Publish sends batch in one transaction, or in several if a key changes its topic in between or the batch is large,
// and returns when these are committed. Errors are those of Broker.Publish. It needs a session of Source, and accepts
// only that session's messages.
func (e *ExactlyOnce) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if len(batch) == 0 {
		return nil
	}
	var s *seat
	select {
	case s = <-e.seats:
	case <-ctx.Done():
		return slices.Repeat([]error{outbox.Unavailable(ctx.Err())}, len(batch))
	}
	defer func() { e.seats <- s }()
	if err := e.enter(ctx); err != nil {
		return slices.Repeat([]error{outbox.Unavailable(err)}, len(batch))
	}
	defer e.leave(s)
	c := call{seat: s, ctx: ctx, batch: batch}
	c.publish()
	return c.errs
}

// enter waits until messages can be published, and takes up the transactional ids if necessary.
func (e *ExactlyOnce) enter(ctx context.Context) error {
	for {
		e.gate.RLock()
		if e.ready.Load() {
			return nil
		}
		e.gate.RUnlock()
		if err := e.takeUp(ctx); err != nil {
			return err
		}
	}
}

// leave ends what enter began. If a seat has lost its client, its id must be taken up again before anything else is
// sent.
func (e *ExactlyOnce) leave(s *seat) {
	s.slab.reset(0)
	s.formatted.forget()
	if s.client == nil {
		e.ready.Store(false)
	}
	e.gate.RUnlock()
}

func (e *ExactlyOnce) takeUp(ctx context.Context) error {
	e.gate.Lock()
	defer e.gate.Unlock()
	if e.ready.Load() {
		return nil
	}
	if e.session == nil {
		return errors.New("kafka: not sent: there is no session; messages must come from a source that Source has wrapped")
	}
	ctx, cancel := context.WithTimeout(ctx, e.broker.cfg.Unanswered)
	defer cancel()
	if err := e.resume(ctx); err != nil {
		return err
	}
	e.fresh = false
	e.ready.Store(true)
	return nil
}

// resume finds out what was published, while no call publishes. The order of its steps makes it safe. First it fences,
// so that no other owner can commit. Then it reads what was committed. Then it asks the database whether this session
// still has the lease: otherwise another session may have published and settled what this one is about to publish.
func (e *ExactlyOnce) resume(ctx context.Context) error {
	if time.Now().After(e.session.Expires()) {
		return relay.ErrLeaseLost
	}
	if e.fresh {
		if err := e.broker.requireTransactions(ctx); err != nil {
			return err
		}
		if err := e.broker.requireCursorTopic(ctx, e.topic); err != nil {
			return err
		}
	}
	// The lease may be a successor's long before it would have expired here. Whoever tries once more asks first, or it
	// would fence the successor with each try.
	if e.tried {
		if err := e.session.Confirm(ctx); err != nil {
			return err
		}
	}
	e.tried = true
	if err := e.fence(ctx); err != nil {
		return e.explain(err)
	}
	cursors, err := e.read(ctx)
	if err != nil {
		return e.explain(err)
	}
	if err := e.session.Confirm(ctx); err != nil {
		return err
	}
	if e.fresh {
		return e.inherit(ctx, cursors)
	}
	return e.resolve(cursors)
}

// fence takes up all ids over new connections. If one client was lost, the connections of the others may be half-open
// too, and each of them would cost Config.Unanswered.
func (e *ExactlyOnce) fence(ctx context.Context) error {
	var all sync.WaitGroup
	errs := make([]error, len(e.all))
	for i, s := range e.all {
		all.Go(func() { errs[i] = s.produce(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// read returns the last record of each id of the destination. A session that covers every shard also fences the ids of
// other shard groups, which are from another number of groups.
func (e *ExactlyOnce) read(ctx context.Context) (map[string]*part, error) {
	for fenced := false; ; fenced = true {
		mark, err := e.all[0].mark(ctx, e.markKey())
		if err != nil {
			return nil, err
		}
		cursors, err := e.broker.readCursors(ctx, e.topic, e.markKey(), mark)
		if err != nil || fenced || !e.fresh || !e.session.Whole() {
			return cursors, err
		}
		strangers := e.strangers(cursors)
		if len(strangers) == 0 {
			return cursors, nil
		}
		if err := e.fenceStrangers(ctx, strangers); err != nil {
			return nil, err
		}
	}
}

// inherit begins a session with the messages that were published before it and aren't settled.
func (e *ExactlyOnce) inherit(ctx context.Context, cursors map[string]*part) error {
	own := map[string]*transactor{}
	for _, s := range e.all {
		own[s.tx.id] = s.tx
		s.tx.parts, s.tx.pending, s.tx.attempt = nil, nil, 0
	}
	held := map[string]map[name]bool{}
	for id, p := range cursors {
		if _, isID, ok := e.parseKey(id); !ok || !isID {
			continue
		}
		attempt := p.attempt
		if err := e.sift(ctx, p, held); err != nil {
			return err
		}
		e.open.inherit(p)
		if t := own[id]; t != nil {
			t.attempt = attempt
			if p.left > 0 {
				t.parts = append(t.parts, p)
			}
		}
	}
	return nil
}

// heirsAtMost bounds what is inherited from one id. Only messages emitted without a row stay in doubt, and no more of
// them can be unsettled than were in flight.
const heirsAtMost = 20_000

// sift keeps the messages of p that may be unsettled.
func (e *ExactlyOnce) sift(ctx context.Context, p *part, held map[string]map[name]bool) error {
	kept := p.entries[:0]
	for _, entry := range p.entries {
		if entry.lane == "" {
			if !e.session.Passed(entry.ref, entry.position) {
				kept = append(kept, entry)
			}
			continue
		}
		if held[entry.lane] == nil {
			lists, err := e.session.Coupled.Held(ctx, []string{entry.lane}, heirsAtMost)
			if err != nil {
				return err
			}
			held[entry.lane] = map[name]bool{}
			for i := range lists[0] {
				held[entry.lane][nameOf(&lists[0][i].Message)] = true
			}
		}
		if held[entry.lane][entry.name] {
			kept = append(kept, entry)
		}
	}
	p.entries = kept[max(0, len(kept)-heirsAtMost):]
	p.left = len(p.entries)
	return nil
}

// resolve determines the outcome of transactions whose outcome was unknown.
func (e *ExactlyOnce) resolve(cursors map[string]*part) error {
	for _, s := range e.all {
		t := s.tx
		last := uint64(0)
		if p := cursors[t.id]; p != nil {
			last = p.attempt
		}
		switch {
		case last == 0 && t.attempt != 0 && t.pending == nil:
			t.attempt = 0 // the cursor topic was recreated; the session itself knows what it has published
		case last == 0 && t.attempt != 0:
			return fmt.Errorf("kafka: the cursor topic %q was deleted while the outcome of a transaction was unknown, "+
				"so it is unknown whether %d messages were published; restart the relay, and they are sent "+
				"again", e.topic, len(t.pending.entries))
		case t.pending != nil && last == t.pending.attempt:
			t.keep()
		case last == t.attempt:
			if t.pending != nil {
				t.giveBack()
			}
		default:
			return fmt.Errorf("kafka: another program publishes with the transactional id %q, and isn't a relay of this "+
				"destination: give each destination of each database a transactional_id of its own", t.id)
		}
	}
	return nil
}

// explain adds what to do about an error that occurred while ids were taken up.
func (e *ExactlyOnce) explain(err error) error {
	switch {
	case outbox.IsPermanent(err):
		return err
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		return outbox.Permanent(fmt.Errorf("kafka: not permitted to use the transactional ids %s-*; grant this user "+
			"Write and Describe on them (kafka-acls.sh --add --allow-principal ... --producer --transactional-id %s- "+
			"--resource-pattern-type prefixed): %w",
			e.id, e.id, err))
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return outbox.Permanent(fmt.Errorf("kafka: the cursor topic %q: not permitted; grant this user Describe, "+
			"DescribeConfigs, Read and Write on it: %w", e.topic, err))
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		return fmt.Errorf("kafka: the cursor topic %q was deleted; create it again, and delivery goes on:\n  %s\n%w",
			e.topic, e.broker.createCursorCommand(e.topic), err)
	}
	return e.broker.down(err)
}

// Ping is Broker.Ping.
func (e *ExactlyOnce) Ping(ctx context.Context) error { return e.broker.Ping(ctx) }

// Close closes all connections. A second Close does nothing.
func (e *ExactlyOnce) Close() error {
	e.gate.Lock()
	defer e.gate.Unlock()
	e.end()
	return e.broker.Close()
}

// end releases the ids. If a transaction is open, the next owner of its id aborts it.
func (e *ExactlyOnce) end() {
	e.ready.Store(false)
	e.session = nil
	for _, s := range e.all {
		s.discard()
	}
}

// Identity returns the cluster's id.
func (e *ExactlyOnce) Identity(ctx context.Context) ([]string, error) { return e.broker.Identity(ctx) }
