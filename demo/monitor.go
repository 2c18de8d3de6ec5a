package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/check"
)

// monitor reads from the database, ten times a second, which relay leads and which messages have become dead letters,
// as an operator would.
func (d *demo) monitor(ctx context.Context) {
	for sleep(ctx, 100*time.Millisecond) {
		if err := d.look(ctx); err != nil && ctx.Err() == nil {
			d.trouble(err)
		}
	}
}

func (d *demo) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := d.lookForLeader(ctx); err != nil {
		return fmt.Errorf("read who leads: %w", err)
	}
	if err := d.lookForDeadLetters(ctx); err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	d.faults.settle(d.arrived.Counts().Outstanding)
	return nil
}

// lead is a relay's possession of the lease. Without a name, no relay leads.
type lead struct {
	name  string
	epoch int64
}

func (d *demo) leader() lead { return d.lead.Load().(lead) }

func (d *demo) lookForLeader(ctx context.Context) error {
	var now lead
	err := d.db.pool.QueryRow(ctx, `
		SELECT coalesce(r.name, c.owner, ''), c.epoch
		FROM outbox.cursors c LEFT JOIN outbox.relays r ON c.owner IN (r.name, r.instance::text)
		WHERE c.destination = $1 AND c.lease_until > clock_timestamp()`, destination).Scan(&now.name, &now.epoch)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	d.lead.Store(now)
	if now.name != "" {
		d.firstLead.Do(func() { d.out.note("leader", "%s has the lease and delivers, the other one stands by", now.name) })
	}
	return nil
}

// deadLetter is a message that the relay has given up.
type deadLetter struct {
	Order    string `json:"order"`
	Reason   string `json:"reason"`
	Error    string `json:"error"`
	Expected bool   `json:"expected"` // it is one of the demo's poison messages

	id int64 // of the row
}

func (d *demo) lookForDeadLetters(ctx context.Context) error {
	seen := []int64{} // nil would be NULL
	for _, letter := range d.dead {
		seen = append(seen, letter.id)
	}
	rows, err := d.db.pool.Query(ctx, `
		SELECT id, coalesce(key, ''), payload, reason, error FROM outbox.dead_letters
		WHERE destination = $1 AND NOT id = ANY ($2::bigint[]) ORDER BY id LIMIT 500`, destination, seen)
	if err != nil {
		return err
	}
	var letter deadLetter
	var payload []byte
	_, err = pgx.ForEachRow(rows, []any{&letter.id, &letter.Order, &payload, &letter.Reason, &letter.Error}, func() error {
		letter.Expected = false
		event, err := check.Decode(payload)
		if err != nil {
			d.out.fault("dead_letter", "a dead letter that the demo didn't write: %v", err)
		} else {
			letter.Expected = d.service.book.settle(event, &letter)
			d.arrived.DeadLettered(event.Key, event.Seq)
			if !letter.Expected {
				d.out.fault("dead_letter", "an event of %s is a dead letter (%s): %s", letter.Order, letter.Reason, letter.Error)
			}
		}
		d.dead = append(d.dead, letter)
		return nil
	})
	return err
}
