package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/check"
)

// backlog describes the messages that a drain finds.
type backlog struct {
	messages, bytes, keys int
	held                  bool // transactions elsewhere are open all the while
}

const (
	// rowsPerTransaction is how a backlog came about.
	rowsPerTransaction = 100

	// backlogWriters have written it, each with its own keys.
	backlogWriters = 4
)

// loaded is a backlog in the database.
type loaded struct {
	backlog
	last    []uint64 // by key: how many messages it has
	release func()   // ends the transactions that are held open
}

// load fills the outbox from several writers at once.
func (b *bed) load(ctx context.Context, what backlog) (_ *loaded, err error) {
	l := &loaded{backlog: what, last: make([]uint64, what.keys), release: func() {}}
	if what.held {
		if l.release, err = b.hold(ctx); err != nil {
			return nil, fmt.Errorf("hold transactions open: %w", err)
		}
		defer func() {
			if err != nil {
				l.release()
			}
		}()
	}
	b.common.say("writing %d messages of %d bytes over %d keys", what.messages, what.bytes, what.keys)
	writers := min(backlogWriters, what.keys)
	group, loading := errgroup.WithContext(ctx)
	for w := range writers {
		group.Go(func() error { return l.fill(loading, b, w, writers) })
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("load the outbox: %w", err)
	}
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// What a drain meets in production: statistics and a visibility map that are not brand new. The count
	// reads everything once, so that the first contender finds what the others do.
	for _, sql := range []string{"VACUUM ANALYZE outbox.messages", "SELECT count(payload) FROM outbox.messages"} {
		if _, err = conn.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
		b.common.say("no checkpoint before the measurement: %v", err) // it takes a right that not every role has
	}
	return l, nil
}

// fill is one writer. Its keys are no other's: their numbers are given out in the order of its commits.
func (l *loaded) fill(ctx context.Context, b *bed, w, writers int) error {
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// The load is not what is measured.
	if _, err := conn.Exec(ctx, "SET synchronous_commit = off"); err != nil {
		return err
	}
	var writer outbox.Writer
	payload := make([]byte, 0, l.bytes)
	mine := (l.keys - w + writers - 1) / writers // keys w, w+writers, …
	for at := w * rowsPerTransaction; at < l.messages; at += writers * rowsPerTransaction {
		rows := func(yield func(outbox.Message, error) bool) {
			for i := at; i < min(at+rowsPerTransaction, l.messages); i++ {
				key := scatter(i)%mine*writers + w
				l.last[key]++
				payload = check.Encode(payload[:0], uint32(key), l.last[key], l.bytes)
				if !yield(outbox.Message{Topic: b.topic, Key: keyName(key), EventType: eventType, Payload: payload}, nil) {
					return
				}
			}
		}
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := writer.Copy(ctx, tx, rows)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const eventType = "bench.happened"

func keyName(key int) string { return fmt.Sprintf("key-%d", key) }

// scatter spreads consecutive numbers, by Knuth's multiplicative hash.
func scatter(i int) int { return int(uint32(i)*2654435761) >> 4 }

// checker knows what was committed.
func (l *loaded) checker() *check.Checker {
	c := check.New(check.Config{})
	for key, last := range l.last {
		for seq := uint64(1); seq <= last; seq++ {
			c.Committed(uint32(key), seq)
		}
	}
	return c
}

// hold opens transactions that stay open, each with a transaction id: one in another database and one that
// has written into the outbox.
func (b *bed) hold(ctx context.Context) (release func(), err error) {
	var held []*pgx.Conn
	release = func() {
		farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUp)
		defer cancel()
		for _, conn := range held {
			_ = conn.Close(farewell) // rolls back
		}
	}
	for url, sql := range map[string]string{
		b.server: "SELECT pg_current_xact_id()",
		b.url:    "INSERT INTO outbox.messages (topic, payload) VALUES ('never', '')",
	} {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			held = append(held, conn)
			_, err = conn.Exec(ctx, "BEGIN")
		}
		if err == nil {
			_, err = conn.Exec(ctx, sql)
		}
		if err != nil {
			release()
			return nil, err
		}
	}
	return release, nil
}
