package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/check"
)

const (
	// writerCount is how many transactions run at once.
	writerCount = 16

	// payloadSize is the size of an ordinary event in bytes, poisonSize of one that the broker refuses.
	payloadSize = 256
	poisonSize  = maxMessage + 32<<10

	// rollbackShare is the part of the transactions that roll back anyway, as they do in life.
	rollbackShare = 0.02
)

// service is the orders service: a table with a row for each order, and writers that change an order and write an event
// about it in one transaction.
type service struct {
	pool    *pgxpool.Pool
	writer  outbox.Writer
	checker *check.Checker
	topic   string
	book    book
	pace    pacer

	// rollbacks is how many of the next transactions roll back.
	rollbacks atomic.Int64
	// calm tells whether the latency of what is committed now counts as undisturbed.
	calm func() bool
	// trouble is told of errors of the database.
	trouble func(error)
}

// errRollback is how a transaction ends that is meant to.
var errRollback = errors.New("rolled back on purpose")

// run writes until ctx ends. What has begun is ended, so that its outcome is known.
func (s *service) run(ctx context.Context, keys int, random *rand.Rand) {
	for s.pace.wait(ctx) {
		// The first orders are busier than the last ones, so that writers do wait for each other's rows.
		key := uint32(random.IntN(1 + random.IntN(keys)))
		rollback := random.Float64() < rollbackShare
		if s.rollbacks.Load() > 0 && s.rollbacks.Add(-1) >= 0 {
			rollback = true
		}
		_, err := s.change(ctx, key, change{size: payloadSize, rollback: rollback})
		if err != nil {
			s.trouble(err)
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
}

// change says what a transaction does to an order.
type change struct {
	size     int
	rollback bool
	poison   bool // the broker will refuse the event

	begun   func(check.ID)           // called when the event has its identity
	hold    func()                   // called between the event and the end of the transaction
	arrived func(took time.Duration) // called when the event arrives, with the time since COMMIT
}

// change changes an order and writes an event about it: the whole of what a service does with an outbox. It returns the
// event's identity.
func (s *service) change(ctx context.Context, key uint32, c change) (check.ID, error) {
	// An outcome must be known, so the end of the demo doesn't cancel what has begun.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()

	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return check.ID{}, fmt.Errorf("begin: %w", err)
	}
	var seq uint64
	err = func() error {
		// The row is locked first: from here to the end of the transaction nobody else writes about this order.
		if _, err := tx.Exec(ctx, `UPDATE orders SET version = version + 1, updated_at = now() WHERE id = $1`, int64(key)); err != nil {
			return fmt.Errorf("update order %d: %w", key, err)
		}
		// Numbers are drawn under that lock and never used twice, as the checker wants them.
		seq = s.book.draw(key)
		if c.begun != nil {
			c.begun(check.ID{Key: key, Seq: seq})
		}
		message := s.event(key, seq, c.size)
		if _, err := s.writer.Write(ctx, tx, message); err != nil {
			return err
		}
		if c.hold != nil {
			c.hold()
		}
		if c.rollback {
			return errRollback
		}
		return nil
	}()
	id := check.ID{Key: key, Seq: seq}
	if err != nil {
		if rollbackErr := tx.Rollback(ctx); rollbackErr != nil {
			s.trouble(fmt.Errorf("roll back: %w", rollbackErr)) // it is: COMMIT was never sent
		}
		if seq != 0 {
			s.checker.RolledBack(key, seq)
		}
		if errors.Is(err, errRollback) {
			return id, nil
		}
		return id, err
	}
	// The clock of the latency starts here, and so includes the flush of the commit.
	s.book.depart(id, departure{at: time.Now(), calm: s.calm(), poison: c.poison, arrived: c.arrived})
	err = tx.Commit(ctx)
	var refused *pgconn.PgError
	switch {
	case err == nil:
		s.checker.Committed(key, seq)
	case errors.As(err, &refused), errors.Is(err, pgx.ErrTxCommitRollback):
		s.book.cancel(id)
		s.checker.RolledBack(key, seq)
	default:
		s.book.cancel(id)
		s.checker.Unknown(key, seq)
	}
	if err != nil {
		return id, fmt.Errorf("commit: %w", err)
	}
	return id, nil
}

func (s *service) event(key uint32, seq uint64, size int) outbox.Message {
	return outbox.Message{
		Topic:         s.topic,
		Key:           orderName(key),
		AggregateType: "order",
		AggregateID:   strconv.Itoa(int(key)),
		EventType:     "order.changed",
		Payload:       check.Encode(nil, key, seq, size),
		ContentType:   "application/octet-stream",
	}
}

func orderName(key uint32) string { return "order-" + strconv.Itoa(int(key)) }

// pacer lets through a number of events a second, for all callers together.
type pacer struct {
	mu   sync.Mutex
	rate int
	next time.Time
}

// wait returns true when it is the caller's turn, and false when ctx ends first.
func (p *pacer) wait(ctx context.Context) bool {
	p.mu.Lock()
	now := time.Now()
	// What the database couldn't do in time is not made up for later.
	if p.next.Before(now.Add(-100 * time.Millisecond)) {
		p.next = now
	}
	turn := p.next
	p.next = p.next.Add(time.Second / time.Duration(p.rate))
	p.mu.Unlock()
	if pause := time.Until(turn); pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	return ctx.Err() == nil
}

func (p *pacer) set(rate int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = rate
}

func (p *pacer) get() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rate
}
