package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/time/rate"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/check"
)

const (
	// writerCount is how many transactions run at once.
	writerCount = 16

	// payloadSize is the size of an ordinary event in bytes, poisonSize the size of one that the broker refuses.
	payloadSize = 256
	poisonSize  = maxMessage + 32<<10

	// rollbackShare is the share of transactions that roll back anyway, as in a real service.
	rollbackShare = 0.02
)

// service is the orders service: a table with a row for each order, and writers that change an order and write an event
// about it in one transaction.
type service struct {
	demo   *demo
	writer outbox.Writer
	book   *book
	pace   *rate.Limiter // of all writers together

	// rollbacks is how many of the next transactions roll back.
	rollbacks atomic.Int64
}

// setRate sets how many events are written per second. Writes that the database couldn't do in time are made up for, up
// to a tenth of a second's worth.
func (s *service) setRate(perSecond int) {
	s.pace.SetLimit(rate.Limit(perSecond))
	s.pace.SetBurst(max(1, perSecond/10))
}

func (s *service) rate() int { return int(s.pace.Limit()) }

// run writes until ctx ends. It finishes transactions that have begun, so that their outcome is known.
func (s *service) run(ctx context.Context, orders int, random *rand.Rand) {
	for s.pace.Wait(ctx) == nil {
		// The first orders are busier than the last ones, so that writers do wait for each other's rows.
		order := uint32(random.IntN(1 + random.IntN(orders)))
		rollback := random.Float64() < rollbackShare
		if s.rollbacks.Load() > 0 && s.rollbacks.Add(-1) >= 0 {
			rollback = true
		}
		if _, err := s.change(ctx, order, change{size: payloadSize, rollback: rollback}); err != nil {
			s.demo.trouble(err)
			sleep(ctx, 200*time.Millisecond)
		}
	}
}

// change is what a transaction does to an order.
type change struct {
	size     int
	rollback bool
	poison   bool // the broker will refuse the event

	hold func()      // called after the event and before the end of the transaction
	fate chan<- fate // gets the fate of the event
}

// errRollback ends a transaction that is meant to roll back.
var errRollback = errors.New("rolled back on purpose")

// change changes an order and writes an event about it: this is all that a service does with an outbox. It returns the
// event's identity.
func (s *service) change(ctx context.Context, order uint32, c change) (id check.ID, err error) {
	// The outcome must be known, so the end of the demo doesn't cancel a transaction that has begun.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	committing := false
	err = pgx.BeginFunc(ctx, s.demo.db.pool, func(tx pgx.Tx) error {
		// The row is locked first: from here to the end of the transaction no other one writes about this order.
		_, err := tx.Exec(ctx, `UPDATE orders SET version = version + 1, updated_at = now() WHERE id = $1`, int64(order))
		if err != nil {
			return fmt.Errorf("update order %d: %w", order, err)
		}
		// Numbers are drawn under that lock and never reused, as the checker requires.
		id = s.book.draw(order)
		_, err = s.writer.Write(ctx, tx, outbox.Message{
			Topic:         topic,
			Key:           orderName(order),
			AggregateType: "order",
			AggregateID:   strconv.Itoa(int(order)),
			EventType:     "order.changed",
			Payload:       check.Encode(nil, order, id.Seq, c.size),
			ContentType:   "application/octet-stream",
		})
		if err != nil {
			return err
		}
		if c.hold != nil {
			c.hold()
		}
		if c.rollback {
			return errRollback
		}
		// The latency starts here, so it includes the flush of the commit.
		s.book.depart(id, departure{at: time.Now(), calm: s.demo.faults.calm.Load(), poison: c.poison, fate: c.fate})
		committing = true
		return nil
	})
	var refused *pgconn.PgError
	switch {
	case err == nil:
		s.demo.checker.Committed(order, id.Seq)
		return id, nil
	case id.Seq == 0:
		return id, err // there is no event
	case !committing, errors.As(err, &refused), errors.Is(err, pgx.ErrTxCommitRollback):
		s.demo.checker.RolledBack(order, id.Seq)
	default:
		s.demo.checker.Unknown(order, id.Seq)
	}
	s.book.settle(id, nil)
	if errors.Is(err, errRollback) {
		return id, nil
	}
	return id, fmt.Errorf("change order %d: %w", order, err)
}

func orderName(order uint32) string { return "order-" + strconv.Itoa(int(order)) }
