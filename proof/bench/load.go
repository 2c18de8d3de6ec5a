package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// loaded is a backlog in the database.
type loaded struct {
	messages, bytes, keys, headers int
	held                           bool // transactions elsewhere are open all the while

	last    []uint64 // by key: how many messages it has
	release func()   // ends the transactions that are held open
}

const (
	// rowsPerTransaction is how a backlog comes about, except an article's.
	rowsPerTransaction = 100

	// backlogWriters write it, each with its own keys.
	backlogWriters = 4

	eventType = "bench.happened"
)

func keyName(key int) string { return fmt.Sprintf("key-%d", key) }

// scatter spreads consecutive numbers, by Knuth's multiplicative hash.
func scatter(i int) int { return int(uint32(i)*2654435761) >> 4 }

// backlog fills a new database, unless the one that is there has the same backlog and may be used again.
func (r *run) backlog(ctx context.Context, messages int, anew bool) (_ *loaded, err error) {
	if l := r.loaded; !anew && l != nil && l.messages == messages && l.bytes == r.Bytes && l.keys == r.Keys &&
		l.headers == r.Headers && l.held == r.Held {
		return l, nil
	}
	if err := r.freshDatabase(ctx); err != nil {
		return nil, err
	}
	conn, hangUp, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	if _, err := conn.Exec(ctx, r.layout.ddl); err != nil {
		return nil, fmt.Errorf("create its table: %w", err)
	}
	if r.readsLog() {
		if err := r.prepareLog(ctx, conn); err != nil {
			return nil, err
		}
	}
	if r.name == Debezium {
		if err := r.prepareDebezium(ctx, conn); err != nil {
			return nil, err
		}
	}
	l := &loaded{messages: messages, bytes: r.Bytes, keys: r.Keys, headers: r.Headers, held: r.Held,
		last: make([]uint64, r.Keys), release: func() {}}
	if r.Held {
		if l.release, err = r.hold(ctx, r.server, r.url); err != nil {
			return nil, fmt.Errorf("hold transactions open: %w", err)
		}
	}
	r.bed.loaded = l // which releases it
	r.say("writing %d messages of %d bytes over %d keys", messages, r.Bytes, r.Keys)
	writers := min(backlogWriters, r.Keys)
	group, loading := errgroup.WithContext(ctx)
	for w := range writers {
		group.Go(func() error { return r.fill(loading, l, w, writers) })
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("load its table: %w", err)
	}
	// What a drain meets in production: statistics and a visibility map that are not brand new. The count
	// reads everything once, so that the first contender finds what the others do.
	table := r.layout.table.Sanitize()
	for _, sql := range []string{r.layout.after, "VACUUM ANALYZE " + table, "SELECT count(payload) FROM " + table} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, fmt.Errorf("load its table: %w", err)
		}
	}
	if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
		r.say("no checkpoint before the measurement: %v", err) // it takes a right that not every role has
	}
	return l, nil
}

// readsLog reports whether the backlog is read from the log, by this contender or another that it is loaded for.
func (r *run) readsLog() bool {
	if r.Bench == "strategies" {
		return r.log
	}
	for _, name := range r.Contenders {
		if c, _ := findContender(r.Bench, name); c.log {
			return true
		}
	}
	return false
}

// fill is one writer. Its keys are no other's: their numbers are given out in the order of its commits.
func (r *run) fill(ctx context.Context, l *loaded, w, writers int) error {
	conn, hangUp, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	// The load is not what is measured.
	if _, err := conn.Exec(ctx, "SET synchronous_commit = off"); err != nil {
		return err
	}
	mine := (l.keys - w + writers - 1) / writers // keys w, w+writers, …
	block := r.work.block()
	for begin := w * block; begin < l.messages; begin += writers * block {
		at := begin
		for _, n := range r.work.rows {
			n = max(min(n, l.messages-at), 0)
			rows := pgx.CopyFromSlice(n, func(i int) ([]any, error) {
				key := scatter(at+i)%mine*writers + w
				l.last[key]++
				return r.layout.row(r.numbered(key, l.last[key])), nil
			})
			err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := tx.CopyFrom(ctx, r.layout.table, r.layout.columns, rows)
				return err
			})
			if err != nil {
				return err
			}
			at += n
		}
	}
	return nil
}

// hold opens transactions that stay open, each with a transaction id: in another database of the server and, if its URL
// is given, one that has written into the outbox.
func (b *bed) hold(ctx context.Context, urls ...string) (release func(), err error) {
	var held []*pgx.Conn
	release = func() {
		farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUp)
		defer cancel()
		for _, conn := range held {
			_ = conn.Close(farewell) // rolls back
		}
	}
	for i, url := range urls {
		sql := [2]string{"BEGIN; SELECT pg_current_xact_id()",
			"BEGIN; INSERT INTO outbox.messages (topic, payload) VALUES ('never', '')"}[i]
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			held = append(held, conn)
			_, err = conn.Exec(ctx, sql)
		}
		if err != nil {
			release()
			return nil, err
		}
	}
	return release, nil
}
