package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/check"
)

// monitor reads from the database, ten times a second, who leads and what has become a dead letter, as an operator would.
func (d *demo) monitor(ctx context.Context) {
	ticks := time.NewTicker(100 * time.Millisecond)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
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

func (d *demo) lookForLeader(ctx context.Context) error {
	var name string
	var epoch int64
	err := d.db.pool.QueryRow(ctx, `
		SELECT coalesce(r.name, c.owner, ''), c.epoch
		FROM outbox.cursors c LEFT JOIN outbox.relays r ON c.owner IN (r.name, r.instance::text)
		WHERE c.destination = $1 AND c.lease_until > clock_timestamp()`, destination).Scan(&name, &epoch)
	if errors.Is(err, pgx.ErrNoRows) {
		d.leader.Store("")
		return nil
	}
	if err != nil {
		return err
	}
	d.leader.Store(name)
	d.faults.leads(name, epoch)
	return nil
}

// deadLetter is a message that the relay has given up.
type deadLetter struct {
	Order    string `json:"order"`
	Reason   string `json:"reason"`
	Error    string `json:"error"`
	Expected bool   `json:"expected"` // it is a poison message of the demo's
}

// deadLetters are those that have been seen.
type deadLetters struct {
	mu   sync.Mutex
	seen []int64 // ids of rows
	all  []deadLetter
}

func (d *demo) deadLetters() []deadLetter {
	d.dead.mu.Lock()
	defer d.dead.mu.Unlock()
	return slices.Clone(d.dead.all)
}

func (d *demo) lookForDeadLetters(ctx context.Context) error {
	d.dead.mu.Lock()
	defer d.dead.mu.Unlock()
	rows, err := d.db.pool.Query(ctx, `
		SELECT id, coalesce(key, ''), payload, reason, error FROM outbox.dead_letters
		WHERE destination = $1 AND NOT id = ANY ($2::bigint[]) ORDER BY id LIMIT 500`, destination, append([]int64{}, d.dead.seen...)) // nil would be NULL
	if err != nil {
		return err
	}
	var id int64
	var payload []byte
	var letter deadLetter
	_, err = pgx.ForEachRow(rows, []any{&id, &letter.Order, &payload, &letter.Reason, &letter.Error}, func() error {
		d.dead.seen = append(d.dead.seen, id)
		event, err := check.Decode(payload)
		if err != nil {
			letter.Expected = false
			d.story.fault("dead_letter", fmt.Sprintf("a dead letter that the demo didn't write: %v", err))
		} else {
			letter.Expected = d.faults.died(event, letter)
			d.service.book.cancel(event)
			d.arrived.DeadLettered(event.Key, event.Seq)
			if !letter.Expected {
				d.story.fault("dead_letter", fmt.Sprintf("an event of %s is a dead letter (%s): %s", letter.Order, letter.Reason, letter.Error))
			}
		}
		d.dead.all = append(d.dead.all, letter)
		return nil
	})
	return err
}
