package health

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/schema"
)

// Inbox is the state of the inbox of a database. Its JSON is a stable contract.
type Inbox struct {
	// Window is for how long records are kept at least. Turned is when the current table became it; Closed
	// is since when the one before has had no writer, zero while it still has.
	Window time.Duration `json:"window_ns"`
	Turned time.Time     `json:"turned"`
	Closed time.Time     `json:"closed,omitzero"`
	Due    bool          `json:"due"` // the turn could go on

	Tables    []InboxTable    `json:"tables"`
	Consumers []InboxConsumer `json:"consumers"`
}

// InboxTable is one of the tables that hold the records by turns.
type InboxTable struct {
	Name  string `json:"name"`
	Role  string `json:"role"` // "current", "before" or "forgotten"
	Bytes int64  `json:"bytes"`
}

// InboxConsumer is one that has records, positions or a stored inbox in the database.
type InboxConsumer struct {
	Name string      `json:"name"`
	Keys admin.Count `json:"keys"` // with a position: a sequence number or a version
	Gaps admin.Count `json:"gaps"`

	// Of a stored inbox: what is stored and not applied, held, and dead.
	Stored  bool        `json:"stored"`
	Pending admin.Count `json:"pending"`
	Held    admin.Count `json:"held"`
	Dead    admin.Count `json:"dead"`
}

// InboxStatus reads the state of the inbox. Counts are exact up to 10,000.
func InboxStatus(ctx context.Context, db admin.DB) (*Inbox, error) {
	out := &Inbox{Tables: []InboxTable{}, Consumers: []InboxConsumer{}}
	err := admin.Read(ctx, db, func(tx pgx.Tx) error {
		if err := admin.PreferIndexes(ctx, tx); err != nil {
			return err
		}
		if err := out.rotation(ctx, tx); err != nil {
			return fmt.Errorf("read the rotation: %w", err)
		}
		names, err := consumerNames(ctx, tx)
		if err != nil {
			return fmt.Errorf("list consumers: %w", err)
		}
		cursors, err := admin.ReadCursors(ctx, tx)
		if err != nil {
			return err
		}
		for _, name := range names {
			c, err := inboxConsumer(ctx, tx, name, cursors)
			if err != nil {
				return fmt.Errorf("consumer %q: %w", name, err)
			}
			out.Consumers = append(out.Consumers, c)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("inbox status: %w", err)
	}
	return out, nil
}

func (i *Inbox) rotation(ctx context.Context, tx pgx.Tx) error {
	var current int
	var window int64
	var closed *time.Time
	err := tx.QueryRow(ctx, `SELECT current, (extract(epoch FROM keep) * 1000000)::bigint, began_at, closed_at,
		coalesce(closed_at + keep <= clock_timestamp(), false) AND emptied FROM outbox.inbox_rotation WHERE single`).
		Scan(&current, &window, &i.Turned, &closed, &i.Due)
	if err != nil {
		return err
	}
	if i.Window = time.Duration(window) * time.Microsecond; closed != nil {
		i.Closed = *closed
	}
	for n := range 3 {
		role := [...]string{"current", "forgotten", "before"}[(n-current+3)%3]
		t := InboxTable{Name: fmt.Sprintf("outbox.inbox_%d", n), Role: role}
		if err := tx.QueryRow(ctx, `SELECT pg_total_relation_size($1::text::regclass)`, t.Name).Scan(&t.Bytes); err != nil {
			return err
		}
		i.Tables = append(i.Tables, t)
	}
	return nil
}

// consumerNames goes from name to name along the indexes, so it costs a step per consumer and table. The
// names under which it is recorded that something was stored are no consumers.
func consumerNames(ctx context.Context, tx pgx.Tx) ([]string, error) {
	step := ""
	for i, table := range []string{"inbox_0", "inbox_1", "inbox_2", "inbox_positions", "inbox_gaps"} {
		if i > 0 {
			step += " UNION ALL "
		}
		step += fmt.Sprintf("(SELECT consumer FROM outbox.%s WHERE consumer > n.consumer ORDER BY consumer LIMIT 1)", table)
	}
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE n (consumer) AS (
			SELECT ''::text COLLATE "C"
			UNION ALL
			SELECT (SELECT min(s.consumer) FROM (`+step+`) s) FROM n WHERE n.consumer IS NOT NULL
		)
		SELECT consumer FROM n WHERE consumer <> '' AND consumer NOT LIKE '% (stored)'
		UNION SELECT substr(destination, $1) COLLATE "C" FROM outbox.cursors WHERE destination LIKE $2 ORDER BY 1`,
		len(schema.InboxPrefix)+1, schema.InboxPrefix+"%")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func inboxConsumer(ctx context.Context, tx pgx.Tx, name string, cursors []admin.Cursor) (InboxConsumer, error) {
	c := InboxConsumer{Name: name}
	for _, part := range []struct {
		into  *admin.Count
		table string
		name  string
	}{
		{&c.Keys, "inbox_positions WHERE consumer", name},
		{&c.Gaps, "inbox_gaps WHERE consumer", name},
		{&c.Held, "holds WHERE destination", schema.InboxPrefix + name},
		{&c.Dead, "dead_letters WHERE destination", schema.InboxPrefix + name},
	} {
		sql := fmt.Sprintf("SELECT count(*) FROM (SELECT FROM outbox.%s = $1 LIMIT %d) s", part.table, admin.CountLimit+1)
		if err := tx.QueryRow(ctx, sql, part.name).Scan(&part.into.N); err != nil {
			return c, err
		}
		part.into.Estimated = part.into.N > admin.CountLimit
	}
	for i := range cursors {
		if cursors[i].Destination != schema.InboxPrefix+name {
			continue
		}
		c.Stored = true
		b, err := ReadBacklog(ctx, tx, &cursors[i])
		if err != nil {
			return c, err
		}
		c.Pending = c.Pending.Plus(b.Pending)
	}
	return c, nil
}

// SetInboxWindow sets how long the records of the database's inbox are kept at least. A shorter window takes effect at
// once.
func SetInboxWindow(ctx context.Context, db admin.DB, window time.Duration, action admin.Action) error {
	if window < time.Second {
		return fmt.Errorf("the window is %v, it must be at least 1s", window)
	}
	err := admin.Write(ctx, db, action, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE outbox.inbox_rotation SET keep = $1::bigint * interval '1 microsecond' WHERE single`, window.Microseconds())
		if err != nil {
			return err
		}
		return admin.Record(ctx, tx, action, "inbox_window", "", map[string]any{"window": window.String()})
	})
	if err != nil {
		return fmt.Errorf("set the window of the inbox: %w", err)
	}
	return nil
}
