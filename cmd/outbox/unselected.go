package main

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/route"
	"github.com/pgoutbox/outbox/schema"
)

// selection says what each destination wants, and counts what none does.
//
// Every destination of a table reads every message of it, so one of them has to do the counting: the first
// of the configuration, in the process that owns it. What it knows is the configuration of its process.
// Where destinations are spread over processes with different ones, a message that another process sends
// is counted here too.
type selection struct {
	destinations []selecting
	counter      prometheus.Counter
	relay        string
	logger       *slog.Logger

	mu      sync.Mutex
	topics  map[string]struct{} // said already
	pending map[string]*unselectedTopic
	changed chan struct{}
}

type selecting struct {
	route.Filter
	table string // that it reads; "" is the outbox
}

func (s *selecting) everything() bool { return len(s.Topics) == 0 && len(s.Any) == 0 }

// unselectedTopic is what has not been written to the database yet.
type unselectedTopic struct {
	messages  int64
	eventType string
	id        outbox.ID
}

func newSelection(cfg config.Config, counter prometheus.Counter, logger *slog.Logger) *selection {
	s := &selection{counter: counter, relay: cfg.Name, logger: logger,
		topics: map[string]struct{}{}, pending: map[string]*unselectedTopic{}, changed: make(chan struct{}, 1)}
	for _, d := range cfg.Destinations {
		own := selecting{Filter: d.Selection()}
		if d.Source != nil {
			own.table = d.Name // a table of its own has one destination
		}
		s.destinations = append(s.destinations, own)
	}
	return s
}

// maxUnselectedTopics bounds the topics that are remembered, maxUnselectedTopic the bytes of one: an INSERT can write longer
// ones than the list's index takes.
const (
	maxUnselectedTopics = 1000
	maxUnselectedTopic  = 1000
)

// of returns what destination n selects, nil if that is everything.
func (s *selection) of(n int, rules *route.Rules) func(*outbox.Message) bool {
	own := &s.destinations[n]
	if own.everything() {
		if !rules.Dropping() {
			return nil
		}
		return func(m *outbox.Message) bool { return !rules.Drops(m) }
	}
	counts := s.counts(n)
	return func(m *outbox.Message) bool {
		if own.Wants(m) {
			return !rules.Drops(m)
		}
		if counts && !s.wanted(m) {
			s.note(m)
		}
		return false
	}
}

// counts says that destination n counts what no destination of the outbox selects: it is the first, and
// there may be such messages.
func (s *selection) counts(n int) bool {
	if s.destinations[n].table != "" {
		return false
	}
	for i := range s.destinations {
		d := &s.destinations[i]
		if d.table == "" && (i < n || d.everything()) {
			return false
		}
	}
	return true
}

// wanted says whether a destination of the outbox wants m.
func (s *selection) wanted(m *outbox.Message) bool {
	for i := range s.destinations {
		if d := &s.destinations[i]; d.table == "" && d.Wants(m) {
			return true
		}
	}
	return false
}

// note counts a message that no destination selects, and names its topic once. m's memory is used again.
func (s *selection) note(m *outbox.Message) {
	s.counter.Inc()
	s.mu.Lock()
	first := s.remember(m)
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
	if first {
		s.logger.Warn("no destination of this relay selects a message, and so nobody gets it: add its topic to a destination's "+
			"topics or filter, or drop it by a rule to say that this is meant; "+
			"it is said once per topic, and outbox_messages_unselected_total counts all",
			"topic", m.Topic, "event_type", m.EventType, "message_id", m.ID.String())
	}
}

func (s *selection) remember(m *outbox.Message) (first bool) {
	topic := m.Topic
	if len(topic) > maxUnselectedTopic {
		topic = strings.ToValidUTF8(topic[:maxUnselectedTopic], "") + "…"
	}
	if _, said := s.topics[topic]; !said {
		if len(s.topics) == maxUnselectedTopics {
			return false
		}
		first = true
	}
	topic = strings.Clone(topic)
	s.topics[topic] = struct{}{}
	p := s.pending[topic]
	if p == nil {
		p = &unselectedTopic{}
		s.pending[topic] = p
	}
	p.messages++
	p.eventType, p.id = strings.Clone(m.EventType), m.ID
	return first
}

// run writes what was noted to where "outbox status" reads it, until ctx ends, and then once more. It does
// its best: what can't be written now is written later.
func (s *selection) run(ctx context.Context, connect func(context.Context) (*pgx.Conn, error)) {
	const pause = 2 * time.Second
	for last := false; !last; {
		select {
		case <-s.changed:
		case <-ctx.Done():
			last = true
		}
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		if err := s.flush(work, connect); err != nil {
			s.logger.Warn("topics that no destination selects could not be written to where \"outbox status\" reads them; they are counted on", "error", err)
		}
		cancel()
		if last {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

func (s *selection) flush(ctx context.Context, connect func(context.Context) (*pgx.Conn, error)) error {
	s.mu.Lock()
	pending := s.pending
	s.pending = map[string]*unselectedTopic{}
	s.mu.Unlock()
	if len(pending) == 0 {
		return nil
	}
	err := s.write(ctx, connect, pending)
	if err != nil {
		s.mu.Lock()
		for topic, p := range pending {
			if newer := s.pending[topic]; newer != nil {
				newer.messages += p.messages
			} else {
				s.pending[topic] = p
			}
		}
		s.mu.Unlock()
	}
	return err
}

// write adds to the counts, each in the row of its topic, and forgets topics of which there was nothing for a week.
func (s *selection) write(ctx context.Context, connect func(context.Context) (*pgx.Conn, error), pending map[string]*unselectedTopic) error {
	var topics, types, ids []string
	var counts []int64
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	defer disconnect(conn)
	for topic, p := range pending {
		topics, types = append(topics, schema.Fit(conn, topic)), append(types, schema.Fit(conn, p.eventType))
		ids, counts = append(ids, p.id.String()), append(counts, p.messages)
	}
	_, err = conn.Exec(ctx, `
		WITH forgotten AS (DELETE FROM outbox.unselected WHERE last_at < clock_timestamp() - interval '7 days' AND NOT topic = ANY ($2::text[]))
		INSERT INTO outbox.unselected AS u (relay, topic, event_type, message_id, messages)
		SELECT $1, x.topic, max(x.event_type), max(x.message_id)::uuid, sum(x.messages)::bigint
		FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) x (topic, event_type, message_id, messages)
		GROUP BY x.topic -- in another encoding two may be one
		ORDER BY x.topic -- so that relays don't wait for each other in a circle
		ON CONFLICT (topic) DO UPDATE SET messages = u.messages + excluded.messages, event_type = excluded.event_type,
		       message_id = excluded.message_id, relay = excluded.relay, last_at = clock_timestamp()`,
		s.relay, topics, types, ids, counts)
	return err
}
