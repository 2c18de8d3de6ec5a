package rig

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

// Delivered is how many messages the database knows to be delivered.
func (l *Load) Delivered(ctx context.Context) (n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = l.Pool().QueryRow(ctx, l.cfg.Table.Delivered).Scan(&n)
	return n, err
}

// Owner returns the name of a relay that delivers, "" while none does. It soon gives up: ask again after an error.
func (l *Load) Owner(ctx context.Context) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err = l.Pool().QueryRow(ctx, l.cfg.Table.Owner).Scan(&name)
	return name, err
}

// Flows waits until a destination has settled everything that was committed when it was called, and returns
// how long that took.
func (l *Load) Flows(ctx context.Context, within time.Duration) (time.Duration, error) {
	began := time.Now()
	mark, drawn := "", false
	var failed error // the last look
	err := Until(ctx, within, 5*time.Millisecond, "what was committed is delivered", func() (passed bool, _ error) {
		passed, failed = l.passed(ctx, &mark, &drawn)
		return passed, nil
	})
	return time.Since(began), errors.Join(err, failed)
}

// passed reports whether what was committed at the mark is settled, and takes the mark if there is none.
func (l *Load) passed(ctx context.Context, mark *string, drawn *bool) (passed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if !*drawn {
		err = l.Pool().QueryRow(ctx, l.cfg.Table.Mark).Scan(mark)
		*drawn = err == nil
		return false, err
	}
	err = l.Pool().QueryRow(ctx, l.cfg.Table.Passed, *mark).Scan(&passed)
	return passed, err
}

// Verdict is what was found at the end of a history.
type Verdict struct {
	Truth  Truth
	Report check.Report
	Held   int // messages that are held although everything is over
	// Delivered is how many messages the database says were delivered.
	Delivered int64
}

// Promise is what a verdict is held to.
type Promise struct {
	Ordered bool   // keys have an order
	Repeats uint64 // how many messages may come again
}

// Broken returns what was promised and not kept. Dead letters are right for messages that no broker takes, and for them
// alone.
func (v Verdict) Broken(p Promise) error {
	var faults []error
	report := v.Report
	if !p.Ordered {
		report.Inverted = 0
	}
	if !report.OK() {
		faults = append(faults, fmt.Errorf("the promises are broken: %v", report))
	}
	if report.Duplicated > p.Repeats {
		faults = append(faults, fmt.Errorf("%d duplicates, of which at most %d were in flight at the faults", report.Duplicated, p.Repeats))
	}
	if report.DeadLettered != uint64(v.Truth.Big) {
		faults = append(faults, fmt.Errorf("%d dead letters, but %d messages are too large", report.DeadLettered, v.Truth.Big))
	}
	if v.Held > 0 {
		faults = append(faults, fmt.Errorf("%d messages are held after everything was delivered", v.Held))
	}
	return errors.Join(faults...)
}

// Judge ends the writers, waits until everything that they committed is at the target or a dead letter,
// has stop end the relays, and compares what the target has then with what the database says. It returns an
// error when it can't tell; a promise that was broken is in the verdict.
func (l *Load) Judge(ctx context.Context, target Target, checker *check.Checker,
	losses Losses, within time.Duration, stop func() error) (v Verdict, err error) {
	if v.Truth, err = l.Tell(ctx, checker, losses); err != nil {
		return v, err
	}
	destination := checker.Destination("default")
	reader, err := target.Read(ctx)
	if err != nil {
		return v, err
	}
	defer reader.Close()
	each := func(payload []byte) { _, _ = destination.Payload(Unwrap(payload)) } // what doesn't decode is counted
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
	if v.Held, err = l.held(ctx, within); err != nil {
		return v, err
	}
	if err := stop(); err != nil {
		return v, err
	}
	// No relay publishes any more, so the topic is complete.
	if err := errors.Join(ReadOn(ctx, reader, each), l.readDead(ctx, destination)); err != nil {
		return v, err
	}
	v.Report = checker.Report()
	v.Delivered, err = l.Delivered(ctx)
	return v, err
}

// held waits until no message is held, and returns how many are after that time. The relays still run: one whose lease
// ends while it drains leaves what it had in flight to the next one, by right.
func (l *Load) held(ctx context.Context, within time.Duration) (n int, err error) {
	err = Until(ctx, within, 10*time.Millisecond, "nothing is held", func() (bool, error) {
		err := l.Pool().QueryRow(ctx, l.cfg.Table.Held).Scan(&n)
		return n == 0, err
	})
	if errors.Is(err, ErrInVain) {
		err = nil
	}
	return n, err
}

// readDead tells the checker of the dead letters, of which only messages that are too large may be.
func (l *Load) readDead(ctx context.Context, to *check.Destination) error {
	if l.cfg.Table.Dead == "" {
		return nil
	}
	rows, err := l.Pool().Query(ctx, l.cfg.Table.Dead)
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
		name, err := check.Decode(Unwrap(payload))
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

// ErrInVain means that something did not come true in time.
var ErrInVain = errors.New("waited in vain")

// Until calls reached, with pauses, until it is true or fails. When that takes longer than within, the error wraps
// [ErrInVain] and says what was waited for.
func Until(ctx context.Context, within, pause time.Duration, what string, reached func() (bool, error)) error {
	for deadline := time.Now().Add(within); ; {
		if ok, err := reached(); ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w for %v until %s", ErrInVain, within, what)
		}
		if err := Pause(ctx, pause); err != nil {
			return err
		}
	}
}

// Pause waits for d, or returns the error of ctx when ctx ends.
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
