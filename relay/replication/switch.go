package replication

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
)

// From the table to the log. A slot begins at a boundary (lsn, snapshot): the snapshot sees exactly what commits
// before lsn. It takes time to make one, because decoding waits for open transactions, and delivery doesn't
// wait: windows go on being read until the last one, B, sees everything that the snapshot sees. Then
//
//   - what commits before lsn is seen by the snapshot, so by B: it comes from the table, and the slot doesn't
//     send it;
//   - what commits at lsn or later is sent. If B sees it, it came from the table, and is left out; if not, it
//     is delivered from the log.
//
// So each comes once. And in order: of two messages of a key, B can't see the second without the first, and
// the log is only read when everything that B sees is settled.
//
// From the log to the table. A second slot, which lasts as long as its connection, gives another boundary. The
// log is read exactly to its lsn; when all of that is settled, its snapshot is the cursor.

// retryAfter is the pause before another boundary is tried.
const retryAfter = 2 * time.Second

func (s *session) nextOfTable(ctx context.Context, limit int) (relay.Batch, error) {
	s.mu.Lock()
	mode := s.mode
	s.mu.Unlock()
	if mode == ModeReplication && !s.making && s.slotReady == nil && !s.table.Behind() && time.Now().After(s.makeAgain) {
		s.making = true
		s.make(s.newSlot)
	}
	select {
	case b := <-s.ready:
		s.making = false
		if b.err != nil {
			s.makeAgain = time.Now().Add(retryAfter)
			s.log().Error("there is no replication slot yet, the table is read meanwhile", "slot", s.source.cfg.Slot, "error", b.err)
			break
		}
		s.slotReady = &b
		if err := s.table.StopAt(b.snapshot); err != nil {
			return relay.Batch{}, err
		}
	default:
	}
	batch, err := s.table.Next(ctx, limit)
	if errors.Is(err, polling.ErrReached) {
		return relay.Batch{}, s.enterLog(ctx)
	}
	return batch, err
}

// make runs f besides.
func (s *session) make(f func(context.Context) (boundary, error)) {
	s.helpers.Go(func() {
		b, err := f(s.ctx)
		if s.ctx.Err() != nil {
			return
		}
		b.err = err
		s.ready <- b
	})
}

// enterLog begins to stream where the slot begins. Everything that the table's cursor sees is settled, and
// nothing beyond it was read.
func (s *session) enterLog(ctx context.Context) error {
	b := s.slotReady
	prev, alone := s.table.Prev()
	if !alone {
		return errors.New("replication: the table has open windows though its boundary is reached")
	}
	seen, err := polling.ParseVisibility(prev)
	if err != nil {
		return err
	}
	// Not ctx: an interrupted write would take the connection with it.
	err = s.table.Write(context.WithoutCancel(ctx), func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		start := newProgress(b.lsn, partial{})
		s.mu.Lock()
		s.publication = b.publication
		s.mu.Unlock()
		next, err := s.moveRow(ctx, conn, prev, 0, start)
		if err != nil || next == nil {
			return false, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.progress, s.stored, s.confirmed = start, *start, b.lsn
		s.seen, s.seenUntil = seen, next.lsn
		s.fallback.snapshot, s.fallback.after = next.snapshot, next.lsn
		s.streaming = true
		return true, nil
	})
	if err != nil {
		return err
	}
	s.slotReady = nil
	conn, err := s.source.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	if err := s.stream(ctx, conn); err != nil {
		return err
	}
	s.log().Info("reading the write-ahead log from now on", "slot", s.source.cfg.Slot, "position", b.lsn.String())
	return nil
}

// lookBack begins to leave the log when the operator wants that.
func (s *session) lookBack() error {
	s.mu.Lock()
	mode := s.mode
	s.mu.Unlock()
	if mode == ModeSnapshot && s.back == nil && !s.making && time.Now().After(s.makeAgain) {
		s.making = true
		s.make(s.wayBack)
	}
	select {
	case b := <-s.ready:
		s.making = false
		if b.err != nil {
			s.makeAgain = time.Now().Add(retryAfter)
			s.log().Error("the handover to the table has to wait", "error", b.err)
			return nil
		}
		s.mu.Lock()
		s.back = &b
		s.pass(s.progress.position) // it may have been read already
		s.mu.Unlock()
	default:
	}
	return nil
}

// wayBack makes a boundary that lies before us. The slot that it comes from is gone when this returns.
func (s *session) wayBack(ctx context.Context) (b boundary, err error) {
	conn, err := s.source.connect(ctx)
	if err != nil {
		return b, err
	}
	defer hangUp(conn)
	wal, err := s.source.connectWAL(ctx)
	if err != nil {
		return b, err
	}
	defer hangUpWAL(wal)
	name := "outbox_handover_" + strings.ToLower(rand.Text()[:16])
	if err := b.create(ctx, wal, conn, createSlot(name, conn, true, false)); err != nil {
		return b, err
	}
	// A transaction that is committed may wait for a synchronous standby, unseen. Windows begin behind the
	// boundary only if an ordinary snapshot sees what that sees.
	for {
		var now string
		if err := conn.QueryRow(ctx, "SELECT pg_current_snapshot()::text").Scan(&now); err != nil {
			return b, fmt.Errorf("wait for the boundary to be visible: %w", err)
		}
		seen, err := polling.ParseVisibility(now)
		if err != nil {
			return b, err
		}
		if seen.Covers(b.sees) {
			return b, nil
		}
		if err := pauseFor(ctx, 5*time.Millisecond); err != nil {
			return b, err
		}
	}
}

// leaveLogSQL makes a snapshot the cursor and forgets the position.
const leaveLogSQL = `
WITH moved AS (
	UPDATE outbox.cursors SET prev = $3::text::pg_snapshot, windows = '{}', last_id = 0,
		lease_until = clock_timestamp() + $4::bigint * interval '1 microsecond', updated_at = clock_timestamp()
	WHERE destination = $1 AND shard_group = 0 AND epoch = $2
	RETURNING destination
)
UPDATE outbox.slots s SET position = NULL, partial_lsn = NULL, partial_count = 0, fallback = NULL, updated_at = clock_timestamp()
FROM moved WHERE s.destination = moved.destination`

// leaveLog goes over to the table once everything before the boundary is settled; until then it waits for a
// settlement.
func (s *session) leaveLog(ctx context.Context) error {
	s.mu.Lock()
	idle := s.progress.idle()
	s.mu.Unlock()
	if !idle {
		timer := time.NewTimer(tick)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.table.Failed():
			return s.table.Failure()
		case <-s.settled:
		case <-timer.C:
		}
		return nil
	}
	b := s.back
	err := s.table.Write(context.WithoutCancel(ctx), func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		tag, err := conn.Exec(ctx, leaveLogSQL, s.source.destination, s.table.Epoch(), b.snapshot, s.ttl().Microseconds())
		if err != nil {
			return false, fmt.Errorf("go over to the table: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return false, relay.ErrLeaseLost
		}
		s.mu.Lock()
		s.streaming = false
		w := s.wire
		s.wire = nil
		s.fallback.snapshot = ""
		s.mu.Unlock()
		w.goodbye()
		return true, s.table.Stand(b.snapshot)
	})
	if err != nil {
		return err
	}
	s.back, s.atEnd = nil, false
	clear(s.layouts)
	s.log().Info("reading the table from now on", "slot_dropped", s.source.cfg.Slot)
	return s.abandonSlot(ctx)
}

// abandonSlot drops a slot that nobody reads any more, so that it keeps no log.
func (s *session) abandonSlot(ctx context.Context) error {
	conn, err := s.source.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	return s.dropSlot(ctx, conn)
}
