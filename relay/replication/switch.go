package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/wal"
	"github.com/pgoutbox/outbox/relay/polling"
)

// From the table to the log. A slot begins at a boundary (lsn, snapshot): the snapshot sees exactly what commits before
// lsn. Creating a slot takes time, because decoding waits for open transactions. Delivery doesn't wait: windows are
// read until the last one, B, sees everything that the snapshot sees. Then
//
//   - what commits before lsn is seen by the snapshot, and so by B: it comes from the table, and the slot doesn't send
//     it;
//   - what commits at lsn or later is sent. If B sees it, it came from the table, and is left out; if not, it is
//     delivered from the log.
//
// So each message comes once. And in order: of two messages of a key, B can't see the second without the first, and the
// log is read only when everything that B sees is settled.
//
// From the log to the table. Between two transactions, at P, delivery stops for a moment and an ordinary snapshot N is
// taken. The log is read further, without delivering, until all transactions that N may see are known; those found
// there are U. Then the cursor becomes N without U:
//
//   - what commits before P was delivered, and N sees it. The session ensures that, because a commit can be in the log
//     before it is visible, long before if it waits for a synchronous standby;
//   - what commits at P or later and is seen by N is in U, so it comes from the table;
//   - what N doesn't see comes from the table anyway.

// retryAfter is the pause before the next try to reach a boundary.
const retryAfter = 2 * time.Second

func (s *session) nextOfTable(ctx context.Context, limit int) (relay.Batch, error) {
	s.mu.Lock()
	mode := s.mode
	s.mu.Unlock()
	if mode == modeReplication && !s.preparing && s.slotReady == nil && !s.table.Behind() && time.Now().After(s.retryAt) {
		s.preparing = true
		s.prepare(s.newSlot)
	}
	select {
	case b := <-s.ready:
		s.preparing = false
		if b.err != nil {
			s.retryAt = time.Now().Add(retryAfter)
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

// prepare runs f, which prepares a boundary, in a goroutine.
func (s *session) prepare(f func(context.Context) (boundary, error)) {
	s.helpers.Go(func() {
		b, err := f(s.ctx)
		if s.ctx.Err() != nil {
			return
		}
		b.err = err
		s.ready <- b
	})
}

// enterLog begins to stream where the slot begins. Everything that the table's cursor sees is settled, and nothing
// beyond it was read.
func (s *session) enterLog(ctx context.Context) error {
	b := s.slotReady
	prev, alone := s.table.Prev()
	if !alone {
		return errors.New("replication: the table has open windows though its boundary is reached")
	}
	seen, err := cursors.Parse(prev)
	if err != nil {
		return err
	}
	// This doesn't use ctx: an interrupted write would lose the connection.
	err = s.table.Write(context.WithoutCancel(ctx), func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		start := wal.NewProgress(wal.Mark{Position: b.lsn})
		s.mu.Lock()
		s.version, s.fallback.covers = b.version, b.lsn
		s.mu.Unlock()
		next, err := s.moveRow(ctx, conn, prev, 0, start.Mark)
		if err != nil || next == nil {
			return false, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.progress, s.stored = start, start.Mark
		s.seen, s.seenUntil = &seen, next.lsn
		s.standbys, s.end = next.standbys, next.lsn
		s.fallback.note(next.snapshot, next.lsn)
		s.streaming = true
		return true, nil
	})
	if err != nil {
		return err
	}
	s.slotReady = nil
	conn, err := s.source.server().Connect(ctx)
	if err != nil {
		return err
	}
	defer dial.HangUp(conn)
	if err := s.stream(ctx, conn); err != nil {
		return err
	}
	s.log().Info("reading the write-ahead log from now on", "slot", s.source.cfg.Slot, "position", b.lsn.String())
	return nil
}

// wantsToLeave reports whether the operator wants the table to be read.
func (s *session) wantsToLeave() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leave == nil && s.mode == modeSnapshot && time.Now().After(s.retryAt) {
		s.leave = &leaving{since: time.Now()}
	}
	return s.leave != nil && !s.progress.Open
}

// maxPause is how long delivery may stop for a commit that is in the log and not visible.
const maxPause = time.Second

// takeSnapshot takes N, if it sees everything that was delivered.
func (s *session) takeSnapshot(ctx context.Context) error {
	var snapshot, lsn string
	err := s.table.Read(func(conn *pgx.Conn) error {
		reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.ttl())
		defer cancel()
		return conn.QueryRow(reading, "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text").Scan(&snapshot, &lsn)
	})
	if err != nil {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	seen, err := cursors.Parse(snapshot)
	if err != nil {
		return err
	}
	until, err := wal.ParseLSN(lsn)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.unseen = slices.DeleteFunc(s.unseen, seen.Sees)
	visible := len(s.unseen) == 0
	s.mu.Unlock()
	switch {
	case visible:
		s.leave.snapshot, s.leave.until = &seen, until
		// A later entry in the log, once on disk, shows that the log was read up to here.
		return s.store(context.WithoutCancel(ctx), nil)
	case time.Since(s.leave.since) > maxPause:
		s.leave, s.retryAt = nil, time.Now().Add(retryAfter)
		s.log().Error("the handover to the table has to wait: a transaction is in the log and not visible; it waits for " +
			"a synchronous standby")
		return nil
	}
	return dial.Pause(ctx, 2*time.Millisecond)
}

// readOn reads the log, without delivering, until everything that N may see has come.
func (s *session) readOn(ctx context.Context) error {
	for !s.leave.passed {
		_, err := s.wal.Read(ctx, (*leaver)(s))
		if err == nil && !s.leave.passed {
			err = s.wal.Ask()
		}
		if failure := s.table.Failure(); err != nil || failure != nil {
			return errors.Join(err, failure)
		}
	}
	return nil
}

// leaver is a session that notes what is in the log and doesn't deliver it.
type leaver session

func (l *leaver) Full() bool { return l.leave.passed }

func (l *leaver) Take(c *wal.Change) (message bool, err error) {
	if l.Full() {
		return false, wal.ErrFull
	}
	s := (*session)(l)
	at := s.leave
	switch c.Kind {
	case wal.KindRelation:
		return false, s.relation(c.Table)
	case wal.KindKeepalive:
		at.passed = c.End >= at.until && s.inTx == 0
	case wal.KindBegin:
		s.inTx = c.LSN
		at.passed = c.LSN >= at.until
	case wal.KindCommit:
		s.inTx = 0
		at.passed = c.End >= at.until
	case wal.KindMessage:
		if !c.Transactional {
			at.passed = c.LSN >= at.until
		} else if string(c.Prefix) == prefix {
			at.emitted++
		}
	case wal.KindInsert:
		if ours, err := s.fill(c); !ours || err != nil {
			return false, err
		}
		x := s.row.xid
		if n := len(at.unsent); !s.fromTable(x) && (n == 0 || at.unsent[n-1] != x) {
			at.unsent = append(at.unsent, x)
		}
	}
	return false, nil
}

// leaveLogSQL makes a snapshot the cursor and removes the position.
const leaveLogSQL = `
WITH moved AS (
	UPDATE outbox.cursors SET prev = $3::text::pg_snapshot, windows = '{}', last_id = 0,
		lease_until = clock_timestamp() + $4::bigint * interval '1 microsecond', updated_at = clock_timestamp()
	WHERE destination = $1 AND shard_group = 0 AND epoch = $2
	RETURNING destination
)
UPDATE outbox.slots s SET position = NULL, partial_lsn = NULL, partial_count = 0, fallback = NULL,
	fallback_lsn = NULL, updated_at = clock_timestamp()
FROM moved WHERE s.destination = moved.destination`

// leaveLog switches to the table, in several calls.
func (s *session) leaveLog(ctx context.Context) error {
	if s.leave.snapshot == nil {
		s.inTx = 0
		return s.takeSnapshot(ctx)
	}
	if err := s.readOn(ctx); err != nil {
		return err
	}
	if idle, err := s.awaitIdle(ctx); !idle {
		return err
	}
	cursor := s.leave.snapshot.Without(s.leave.unsent)
	err := s.table.Write(context.WithoutCancel(ctx), func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		tag, err := conn.Exec(ctx, leaveLogSQL, s.source.destination, s.table.Epoch(), cursor, s.ttl().Microseconds())
		if err != nil {
			return false, fmt.Errorf("go over to the table: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return false, relay.ErrLeaseLost
		}
		s.endStream()
		return true, s.table.MoveTo(cursor)
	})
	if err != nil {
		return err
	}
	if n := s.leave.emitted; n > 0 {
		s.log().Error("messages were emitted without a row after the handover and are not delivered", "messages", n)
	}
	s.leave = nil
	s.log().Info("reading the table from now on", "slot_dropped", s.source.cfg.Slot)
	return s.abandonSlot(ctx)
}

// awaitIdle reports whether everything that was delivered is settled, and waits a moment if it isn't.
func (s *session) awaitIdle(ctx context.Context) (bool, error) {
	s.mu.Lock()
	idle := s.progress.Idle()
	s.mu.Unlock()
	if idle {
		return true, nil
	}
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-s.table.Failed():
		return false, s.table.Failure()
	case <-s.settled:
	case <-timer.C:
	}
	return false, nil
}

// endStream makes Next read the table. It runs within a write, so that no other write takes it for the log's.
func (s *session) endStream() {
	s.mu.Lock()
	s.streaming = false
	w := s.wal
	s.wal = nil
	s.fallback.next = nil
	s.mu.Unlock()
	w.Goodbye()
	s.catching = false
	clear(s.layouts)
}
