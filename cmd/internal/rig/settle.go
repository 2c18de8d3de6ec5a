package rig

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

// Delivered is how many messages the cursors count.
func (l *Load) Delivered(ctx context.Context) (n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err = l.Pool().QueryRow(ctx, "SELECT coalesce(sum(delivered), 0)::bigint FROM outbox.cursors").Scan(&n)
	return n, err
}

// Owner returns the name of the relay that holds a lease, "" while nobody does.
func (l *Load) Owner(ctx context.Context) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err = l.Pool().QueryRow(ctx, "SELECT coalesce(max(owner), '') FROM outbox.cursors WHERE lease_until > clock_timestamp()").Scan(&name)
	return name, err
}

// Flows waits until a destination has settled everything that was committed when it was called, and returns
// how long that took.
func (l *Load) Flows(ctx context.Context, within time.Duration) (time.Duration, error) {
	began := time.Now()
	mark := "" // an xid that is drawn and committed now
	for {
		passed, err := l.passed(ctx, &mark)
		if passed {
			return time.Since(began), nil
		}
		if time.Since(began) > within {
			if err == nil {
				err = errors.New("the database answers")
			}
			return within, fmt.Errorf("what was committed %v ago is not delivered: %w", within, err)
		}
		if err := Pause(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// passed reports whether a destination, with all its shard groups, has passed the mark, and draws one if there is none.
func (l *Load) passed(ctx context.Context, mark *string) (passed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if *mark == "" {
		return false, l.Pool().QueryRow(ctx, "SELECT pg_current_xact_id()::text").Scan(mark)
	}
	err = l.Pool().QueryRow(ctx, `SELECT coalesce(bool_or(d.passed), false) FROM (
		SELECT bool_and(pg_visible_in_snapshot($1::text::xid8, prev)) AS passed FROM outbox.cursors GROUP BY destination
	) d`, *mark).Scan(&passed)
	return passed, err
}

// Verdict is what was found at the end of a history.
type Verdict struct {
	Truth  Truth
	Report check.Report
	Held   int // messages that are held although everything is over
}

// Judge ends the writers, waits until everything that they committed is at the target or a dead letter,
// has stop end the relays, and compares what the target has then with what the database says. It returns an
// error when it can't tell; a promise that was broken is in the verdict.
func (l *Load) Judge(ctx context.Context, target Target, checker *check.Checker, losses Losses, within time.Duration, stop func() error) (v Verdict, err error) {
	if v.Truth, err = l.Tell(ctx, checker, losses); err != nil {
		return v, err
	}
	destination := checker.Destination("default")
	reader, err := target.Read(ctx)
	if err != nil {
		return v, err
	}
	defer reader.Close()
	each := func(payload []byte) { _, _ = destination.Payload(payload) } // what doesn't decode is counted
	for deadline := time.Now().Add(within); time.Now().Before(deadline); {
		if err := l.readDead(ctx, destination); err != nil {
			return v, err
		}
		if checker.Outstanding() == 0 {
			break
		}
		payloads, err := reader.Next(ctx)
		if err != nil {
			return v, err
		}
		for _, p := range payloads {
			each(p)
		}
	}
	if err := stop(); err != nil {
		return v, err
	}
	// Nobody publishes any more: what is in the topic now is all that there will be.
	if err := errors.Join(ReadOn(ctx, reader, each), l.readDead(ctx, destination)); err != nil {
		return v, err
	}
	v.Report = checker.Report()
	if err := l.Pool().QueryRow(ctx, "SELECT count(*) FROM outbox.holds").Scan(&v.Held); err != nil {
		return v, fmt.Errorf("count the holds: %w", err)
	}
	return v, nil
}

// readDead tells the checker of the dead letters, of which only messages that are too large may be.
func (l *Load) readDead(ctx context.Context, to *check.Destination) error {
	rows, err := l.Pool().Query(ctx, "SELECT payload, error FROM outbox.dead_letters")
	if err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var payload []byte
		var why string
		if err := rows.Scan(&payload, &why); err != nil {
			return fmt.Errorf("read the dead letters: %w", err)
		}
		name, err := check.Decode(payload)
		if err != nil {
			return fmt.Errorf("a dead letter: %w", err)
		}
		if !l.isBig(name) {
			return fmt.Errorf("message %v is a dead letter, and nothing was wrong with it: %s", name, why)
		}
		to.DeadLettered(name.Key, name.Seq)
	}
	return rows.Err()
}

// isBig reports whether a message is one that no broker takes.
func (l *Load) isBig(name check.ID) bool {
	a := &l.accounts[name.Key]
	a.mu.Lock()
	defer a.mu.Unlock()
	return name.Seq <= uint64(len(a.attempts)) && a.attempts[name.Seq-1].big
}

// CommittedAt returns when a message's writer knew that it was committed, and whether it does.
func (l *Load) CommittedAt(name check.ID) (time.Time, bool) {
	a := &l.accounts[name.Key]
	a.mu.Lock()
	defer a.mu.Unlock()
	if name.Seq > uint64(len(a.attempts)) {
		return time.Time{}, false
	}
	m := a.attempts[name.Seq-1]
	return m.at, m.outcome == committed
}

// Pause waits, or returns ctx's error when that ends first.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
