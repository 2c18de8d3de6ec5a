// Package verify compares what was committed with what a consumer has applied.
package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
)

// Config selects what Run compares.
type Config struct {
	// Consumer is whose inbox is looked into. Required, except with Applied.
	Consumer string

	// Applied is a query that says what was applied, in place of the consumer's inbox: its two columns are a
	// message's id and a number that grows in the order of application. A row for each application, so
	// that one that was applied twice has two. Rows of the effect itself prove more than the inbox's records.
	Applied string

	// Topics that the consumer gets; none: all.
	Topics []string

	// Since and Until bound the messages by the time of their insert, FirstID and LastID by their rows' ids.
	// Zero: no bound.
	Since, Until    time.Time
	FirstID, LastID int64

	// Settle is how old a message must be to be missed: younger ones may be on their way.
	Settle time.Duration

	// Limit bounds each list of the report; what is beyond is counted. Default 1000.
	Limit int
}

// Verification is the result of Run. Its JSON is a stable contract.
type Verification struct {
	Committed int64 `json:"committed"` // messages in the range; 0: nothing was compared
	Applied   int64 `json:"applied"`   // of these, at least once

	// Oldest is when the oldest message was written that is still in the outbox, in the range or not: nothing from
	// before it was compared. nil: the outbox is empty.
	Oldest *time.Time `json:"oldest"`

	Missing  Findings[Message]     `json:"missing"`  // committed and not applied
	Doubled  Findings[Message]     `json:"doubled"`  // applied more than once
	Inverted Findings[Inversion]   `json:"inverted"` // applied before an earlier message of their key
	Gaps     Findings[SequenceGap] `json:"gaps"`     // numbers that the consumer has passed without a message
}

// OK reports whether everything that was compared was applied, once and in order. If nothing was compared, that says
// nothing: ask Committed.
func (v *Verification) OK() bool {
	return v.Missing.N+v.Doubled.N+v.Inverted.N+v.Gaps.N == 0
}

// Findings counts the faults of one kind, and lists the first of them.
type Findings[T any] struct {
	N    int64 `json:"n"`
	List []T   `json:"list"`
}

func (f *Findings[T]) add(limit int, found T) {
	if f.N++; len(f.List) < limit {
		f.List = append(f.List, found)
	}
}

// Message is a message with a fault.
type Message struct {
	MessageID outbox.ID `json:"message_id"`
	Position  int64     `json:"position"` // the row's id in the outbox
	Topic     string    `json:"topic"`
	Key       string    `json:"key,omitempty"`      // the ordering key
	Sequence  string    `json:"sequence,omitempty"` // its number, if it carries one
	CreatedAt time.Time `json:"created_at"`
	Times     int       `json:"times"` // how often it was applied
}

// Inversion is a message that was applied before an earlier one of its key.
type Inversion struct {
	Message
	Before Message `json:"before"` // the earlier one
}

// SequenceGap is a range of missing sequence numbers of a topic and key.
type SequenceGap struct {
	Topic string `json:"topic"`
	Key   string `json:"key"`
	First int64  `json:"first"`
	Last  int64  `json:"last"`
}

// Run compares what was committed to the outbox of source with what was applied in target, which may be the
// same database, and names every difference. It knows of messages that are still in the outbox: retention
// empties that. For messages that carry sequence numbers it also lists the gaps that the consumer has noted,
// of all time.
//
// source and target each hold a transaction meanwhile, so they are two connections, or pools.
//
// The outbox is read first, so what is applied meanwhile is no difference. It reads both sides in pages; memory
// grows with the number of keys.
func Run(ctx context.Context, source, target admin.DB, cfg Config) (*Verification, error) {
	if cfg.Consumer == "" && cfg.Applied == "" {
		return nil, errors.New("verify: name the consumer, or give a query of what was applied")
	}
	if conn, ok := source.(*pgx.Conn); ok && source == target {
		return nil, fmt.Errorf("verify: source and target are one connection to %s: give two", conn.Config().Database)
	}
	if cfg.Settle < 0 {
		return nil, fmt.Errorf("verify: Settle is %v, it can't be negative", cfg.Settle)
	}
	if cfg.Limit <= 0 {
		cfg.Limit = 1000
	}
	v := &verifier{cfg: cfg, last: map[string]application{}}
	v.result.Missing.List, v.result.Doubled.List = []Message{}, []Message{}
	v.result.Inverted.List, v.result.Gaps.List = []Inversion{}, []SequenceGap{}
	err := admin.Read(ctx, source, func(from pgx.Tx) error {
		// Now, before the target's: a snapshot is taken by the first statement.
		var now time.Time
		if err := from.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		if youngest := now.Add(-cfg.Settle); v.cfg.Until.IsZero() || v.cfg.Until.After(youngest) {
			v.cfg.Until = youngest
		}
		if err := from.QueryRow(ctx, `SELECT min(created_at) FROM outbox.messages`).Scan(&v.result.Oldest); err != nil {
			return fmt.Errorf("read the outbox: %w", err)
		}
		return admin.Read(ctx, target, func(to pgx.Tx) error {
			if err := v.messages(ctx, from, to); err != nil {
				return err
			}
			return v.gaps(ctx, to)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	return &v.result, nil
}

type verifier struct {
	cfg    Config
	result Verification
	last   map[string]application // by key: of those looked at, the one that was applied last
}

type application struct {
	order   int64
	message Message
}

const verifyPage = 5000

// messages goes through the committed messages by id, which is the order of each key.
func (v *verifier) messages(ctx context.Context, from, to pgx.Tx) error {
	if _, err := from.Exec(ctx, `SET LOCAL jit = off; DECLARE committed NO SCROLL CURSOR FOR `+v.committedSQL()); err != nil {
		return fmt.Errorf("read the outbox: %w", err)
	}
	for {
		page, err := v.page(ctx, from)
		if err != nil {
			return fmt.Errorf("read the outbox: %w", err)
		}
		if len(page) == 0 {
			return nil
		}
		applied, err := v.applied(ctx, to, page)
		if err != nil {
			return fmt.Errorf("read what was applied: %w", err)
		}
		for i := range page {
			v.compare(page[i], applied[page[i].MessageID])
		}
	}
}

// committedSQL is without parameters, which a cursor's query can't have.
func (v *verifier) committedSQL() string {
	sql := `SELECT message_id::text, id, topic, coalesce(nullif(key, ''), nullif(aggregate_id, ''), ''),
		coalesce(outbox.header(headers, 'sequence'), ''), created_at FROM outbox.messages WHERE true`
	add := func(ok bool, format string, args ...any) {
		if ok {
			sql += " AND " + fmt.Sprintf(format, args...)
		}
	}
	add(!v.cfg.Since.IsZero(), "created_at >= '%s'", v.cfg.Since.UTC().Format(time.RFC3339Nano))
	add(!v.cfg.Until.IsZero(), "created_at < '%s'", v.cfg.Until.UTC().Format(time.RFC3339Nano))
	add(v.cfg.FirstID > 0, "id >= %d", v.cfg.FirstID)
	add(v.cfg.LastID > 0, "id <= %d", v.cfg.LastID)
	if len(v.cfg.Topics) > 0 {
		sql += " AND topic IN ("
		for i, topic := range v.cfg.Topics {
			if i > 0 {
				sql += ", "
			}
			sql += literal(topic)
		}
		sql += ")"
	}
	return sql + " ORDER BY id"
}

// literal quotes a text, whatever standard_conforming_strings says.
func literal(text string) string {
	quoted := make([]byte, 0, len(text)+4)
	quoted = append(quoted, " E'"...)
	for i := range len(text) {
		if c := text[i]; c == '\'' || c == '\\' {
			quoted = append(quoted, '\\')
		}
		quoted = append(quoted, text[i])
	}
	return string(append(quoted, '\''))
}

func (v *verifier) page(ctx context.Context, from pgx.Tx) ([]Message, error) {
	rows, err := from.Query(ctx, fmt.Sprintf(`FETCH %d FROM committed`, verifyPage))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Message, err error) {
		var id string
		if err := row.Scan(&id, &m.Position, &m.Topic, &m.Key, &m.Sequence, &m.CreatedAt); err != nil {
			return m, err
		}
		m.MessageID, err = outbox.ParseID(id)
		return m, err
	})
}

// appliedSQL finds records by their ids. The few that are recorded by a deduplication key take a look at
// the consumer's others. A record can stand in several tables, with the same number.
const appliedSQL = `SELECT i.message_id::text, i.applied FROM outbox.inbox i WHERE i.consumer = $1 AND i.id = ANY ($2::text[]::uuid[])
	UNION SELECT i.message_id::text, i.applied FROM outbox.inbox i
	WHERE i.consumer = $1 AND i.dedup_key IS NOT NULL AND i.message_id = ANY ($2::text[]::uuid[]) ORDER BY 2`

// applied returns when the messages of a page were applied, in order.
func (v *verifier) applied(ctx context.Context, to pgx.Tx, page []Message) (map[outbox.ID][]int64, error) {
	ids := make([]string, len(page))
	for i := range page {
		ids[i] = page[i].MessageID.String()
	}
	sql, args := appliedSQL, []any{v.cfg.Consumer, ids}
	if v.cfg.Applied != "" {
		sql, args = `SELECT a.message_id::text, a.applied::bigint FROM (`+v.cfg.Applied+`) a (message_id, applied)
			WHERE lower(a.message_id::text) = ANY ($1::text[]) ORDER BY 2`, []any{ids}
	}
	rows, err := to.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	all := make(map[outbox.ID][]int64, len(page))
	var text string
	var order int64
	_, err = pgx.ForEachRow(rows, []any{&text, &order}, func() error {
		id, err := outbox.ParseID(text)
		all[id] = append(all[id], order)
		return err
	})
	return all, err
}

// compare takes the messages of a key in their order. The first application counts: a repetition is named as
// one, and turns no order around.
func (v *verifier) compare(m Message, applied []int64) {
	v.result.Committed++
	m.Times = len(applied)
	if m.Times == 0 {
		v.result.Missing.add(v.cfg.Limit, m)
		return
	}
	v.result.Applied++
	if m.Times > 1 {
		v.result.Doubled.add(v.cfg.Limit, m)
	}
	if m.Key == "" {
		return
	}
	first := slices.Min(applied)
	if before, ok := v.last[m.Key]; ok && first < before.order {
		v.result.Inverted.add(v.cfg.Limit, Inversion{m, before.message})
		return
	}
	v.last[m.Key] = application{first, m}
}

// gaps lists what the consumer itself has noted.
func (v *verifier) gaps(ctx context.Context, to pgx.Tx) error {
	if v.cfg.Consumer == "" {
		return nil
	}
	rows, err := to.Query(ctx, `SELECT topic, key, first, last FROM outbox.inbox_gaps
		WHERE consumer = $1 AND ($2::text[] IS NULL OR topic = ANY ($2)) ORDER BY topic, key, first`, v.cfg.Consumer, v.cfg.Topics)
	if err != nil {
		return fmt.Errorf("read the gaps: %w", err)
	}
	var g SequenceGap
	_, err = pgx.ForEachRow(rows, []any{&g.Topic, &g.Key, &g.First, &g.Last}, func() error {
		v.result.Gaps.add(v.cfg.Limit, g)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the gaps: %w", err)
	}
	return nil
}
