// Package unselected records the topics of messages that no destination selects.
package unselected

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay/internal/later"
	"github.com/pgoutbox/outbox/schema"
)

// Recorder records the topics of messages that no destination selects, for `outbox status` to read. A message that
// one destination's Select rejects may be selected by another, so the program itself decides which messages to note, in
// the Select of a destination that sees all of them. Safe for concurrent use.
type Recorder struct {
	conn   *pgx.ConnConfig
	relay  string
	logger *slog.Logger
	later  *later.Writer[string, unselectedTopic]

	mu     sync.Mutex
	topics map[string]struct{} // topics seen so far
}

// unselectedTopic is a topic's news that is not yet in the database.
type unselectedTopic struct {
	messages  int64
	eventType string
	id        outbox.ID
}

// maxUnselectedTopics bounds the number of remembered topics, maxUnselectedTopic the bytes of one: an INSERT can write
// longer topics than the index of the list accepts. unselectedPause is the least time between two writes.
const (
	maxUnselectedTopics = 1000
	maxUnselectedTopic  = 1000
	unselectedPause     = 2 * time.Second
)

// errNoList means that there is no list that this role may write, as where relays read other tables alone.
var errNoList = errors.New("there is no outbox.unselected, or this role may not write to it")

// New returns a recorder for a process; relay is its name, for people. It opens a connection with conn when
// it has something to write. It makes a best effort: if it can't write now, it tries again later and logs that to
// logger; nil: slog.Default.
func New(conn *pgx.ConnConfig, relay string, logger *slog.Logger) *Recorder {
	u := &Recorder{conn: conn.Copy(), relay: relay, logger: settings.Logger(logger), topics: make(map[string]struct{})}
	u.later = later.New(unselectedPause, func(earlier, next unselectedTopic) unselectedTopic {
		next.messages += earlier.messages
		return next
	}, u.write)
	return u
}

// Note counts a message and reports whether it is the first of its topic. It keeps nothing of m and doesn't block.
func (u *Recorder) Note(m *outbox.Message) (first bool) {
	topic := m.Topic
	if len(topic) > maxUnselectedTopic {
		topic = strings.ToValidUTF8(topic[:maxUnselectedTopic], "") + "…"
	}
	topic = strings.Clone(topic)
	u.mu.Lock()
	_, seen := u.topics[topic]
	full := !seen && len(u.topics) == maxUnselectedTopics
	if !full {
		u.topics[topic] = struct{}{}
	}
	u.mu.Unlock()
	if full {
		return false
	}
	u.later.Note(topic, unselectedTopic{messages: 1, eventType: strings.Clone(m.EventType), id: m.ID})
	return !seen
}

// Close writes what is left, within a few seconds. Don't call Note afterwards.
func (u *Recorder) Close() error { return u.later.End() }

// write adds to the counts of the topics' rows, and deletes topics that had no messages for a week.
func (u *Recorder) write(ctx context.Context, pending map[string]unselectedTopic) (err error) {
	defer func() {
		if err != nil && !errors.Is(err, errNoList) {
			u.logger.Warn("unselected topics could not be recorded for \"outbox status\"; counting continues", "error", err)
		}
	}()
	conn, err := dial.Connect(ctx, u.conn, "outbox unselected "+u.relay)
	if err != nil {
		return err
	}
	defer dial.HangUp(conn)
	var may bool // relays of other tables alone need no schema
	sql := "SELECT " + schema.MaySQL("unselected", "SELECT", "INSERT", "UPDATE", "DELETE")
	if err := conn.QueryRow(ctx, sql).Scan(&may); err != nil {
		return fmt.Errorf("look for the list of unselected topics: %w", err)
	}
	if !may {
		return errNoList
	}
	var topics, types, ids []string
	var counts []int64
	for topic, p := range pending {
		topics, types = append(topics, schema.Fit(conn, topic)), append(types, schema.Fit(conn, p.eventType))
		ids, counts = append(ids, p.id.String()), append(counts, p.messages)
	}
	err = dial.Write(ctx, conn, `
		WITH forgotten AS (DELETE FROM outbox.unselected WHERE last_at < clock_timestamp() - interval '7 days' AND NOT topic = ANY ($2::text[]))
		INSERT INTO outbox.unselected AS u (relay, topic, event_type, message_id, messages)
		SELECT $1, x.topic, max(x.event_type), max(x.message_id)::uuid, sum(x.messages)::bigint
		FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) x (topic, event_type, message_id, messages)
		GROUP BY x.topic -- in another encoding two may be one
		ORDER BY x.topic -- so that relays don't wait for each other in a circle
		ON CONFLICT (topic) DO UPDATE SET messages = u.messages + excluded.messages, event_type = excluded.event_type,
		       message_id = excluded.message_id, relay = excluded.relay, last_at = clock_timestamp()`,
		u.relay, topics, types, ids, counts)
	if err != nil {
		return fmt.Errorf("write unselected topics: %w", err)
	}
	return nil
}
