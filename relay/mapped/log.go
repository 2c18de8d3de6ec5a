package mapped

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/wal"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/relay/mapped/internal/link"
	"github.com/pgoutbox/outbox/relay/mapped/internal/pending"
)

// logSession owns a slot. It delivers the inserted rows in the order of commits. It reads or changes no row of the
// table.
//
// The replication slot is the only state that lasts. It stands at a commit before the first message that is not
// settled. After a crash or a stop, everything behind that commit comes again: a transaction that was settled in
// part, and messages that were delivered behind one that waits. If the slot is gone, the messages that were
// committed since are lost: Acquire reports that and creates no new slot.
type logSession struct {
	*session
	tail *wal.Tail
	rows *existing.LogRows // of Next

	mu      sync.Mutex
	entries []*logEntry // not done, or behind one that is not done; in order
}

var _ strategy = (*logSession)(nil)

// newLog waits until the link has the lock of the slot. The session with that lock owns the slot.
func newLog(ctx context.Context, x *session) (relay.Session, error) {
	src := x.source
	if x.pooled != nil {
		return nil, x.pooled
	}
	if err := src.awaitLock(ctx, x.conn, x.table.NameLock("slot "+src.cfg.Slot), "another relay reads the log"); err != nil {
		return nil, err
	}
	s := &logSession{session: x, rows: existing.NewLogRows(x.table)}
	s.holds.Whole = true
	s.begin(s, s.keep)
	tail, err := wal.OpenTail(ctx, src.conn, wal.TailConfig{
		Slot: src.cfg.Slot, Publication: src.cfg.Publication, Logger: src.cfg.Logger,
		Table: x.table.Info.TableName(), OID: x.table.Info.OID, Unsent: src.unsent,
	})
	if err != nil {
		s.keepUnsent(err)
		_ = s.link.Close(nil) // err is the one to report
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tail, src.unsent = tail, nil
	return s, nil
}

// keepUnsent keeps for later sessions that inserts may not have been sent. They have no other way to know it: the
// publication sends everything by then, and the slot is beyond what was not sent.
func (s *logSession) keepUnsent(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	errors.As(err, &s.source.unsent)
}

// keep sends a statement on the connection that has the lock. If there is a stream, the statement checks that the
// stream is sound. If it isn't, the source has no further session until somebody has made the slot again.
func (s *logSession) keep(ctx context.Context, conn *pgx.Conn) error {
	s.mu.Lock()
	tail := s.tail
	s.mu.Unlock()
	if tail == nil {
		return link.Ping(ctx, conn)
	}
	err := tail.Sound(ctx, conn)
	s.keepUnsent(err)
	return err
}

// logEntry is a row on its way. It keeps the row's texts for a dead letter, because the writer may have deleted the row
// from the table.
type logEntry struct {
	number     uint64
	row        *existing.LogRow
	done, held bool
}

// runAheadOfLog is how many messages are read behind one that waits. The slot retains the log from there on.
const runAheadOfLog = 100_000

// Next returns without messages, after a while, when no more may be read.
func (s *logSession) Next(ctx context.Context, limit int) (relay.Batch, error) {
	if err := s.failure(); err != nil {
		return relay.Batch{}, err
	}
	ds, err := s.take(ctx, limit)
	return relay.Batch{Deliveries: ds, Full: s.full()}, err
}

func (s *logSession) take(ctx context.Context, limit int) (ds []relay.Delivery, err error) {
	if s.full() != nil {
		return nil, dial.Pause(ctx, s.source.cfg.PollIdle)
	}
	var rows []*existing.LogRow
	_, err = s.tail.Read(ctx, limit, func(i *wal.Insert) error {
		row := existing.NewLogRow(i)
		rows = append(rows, row)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.entries = append(s.entries, &logEntry{number: i.Number, row: row})
		return nil
	})
	s.keepUnsent(err)
	if err == nil && len(rows) > 0 { // the stream's lock isn't held any more: the link may have to wait for it
		err = s.link.Do(func(conn *pgx.Conn) (err error) {
			asking, cancel := s.source.lasting(ctx)
			defer cancel()
			ds, err = s.rows.Read(asking, conn, rows)
			return err
		})
	}
	if failure := s.failure(); failure != nil {
		err = failure // the link has lost the right to the slot, which may also have ended the stream
	}
	return ds, err
}

// full says why no more may be read: too many messages are set aside, or wait behind those.
func (s *logSession) full() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.entries) >= runAheadOfLog && s.entries[0].held {
		return fmt.Errorf("%d messages were read behind one that is set aside, and the log can't be released before that one ends: "+
			"nothing new is read, of any key, until it is delivered or dead", runAheadOfLog)
	}
	return s.source.errHolds(s.holds.Size())
}

// Settle stores dead letters, and then tells the server up to where everything is settled. A crash between the two
// repeats a dead letter; it is stored only once.
func (s *logSession) Settle(ctx context.Context, x relay.Settlement) error {
	return s.link.Do(func(conn *pgx.Conn) error {
		if err := s.bury(ctx, conn, append(append([]relay.Dead(nil), x.Dead...), x.HeldDead...)); err != nil {
			return err
		}
		through := s.note(&x)
		for i := range x.Hold {
			s.holds.Add(pending.Entry{Ref: x.Hold[i].Delivery.Ref}, &x.Hold[i])
		}
		s.holds.Settle(&x)
		s.source.noteSettled(&x)
		if through == 0 {
			return nil
		}
		if err := s.tail.Settled(through); err != nil {
			return fmt.Errorf("%w: %w", relay.ErrLeaseLost, err)
		}
		return nil
	})
}

// note records which messages are done and which are set aside. It returns up to where everything is done, or 0 if that
// has not moved.
func (s *logSession) note(x *relay.Settlement) (through uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range x.Hold {
		if e := s.entry(x.Hold[i].Delivery.Ref); e != nil {
			e.held = true
		}
	}
	if x.Through != nil {
		for _, e := range s.entries {
			if e.number > x.Through.Ref {
				break
			}
			s.finish(e, !e.held)
		}
	}
	for _, d := range x.HeldDelivered {
		s.finish(s.entry(d.Ref), true)
	}
	for i := range x.HeldDead {
		s.finish(s.entry(x.HeldDead[i].Delivery.Ref), true)
	}
	for len(s.entries) > 0 && s.entries[0].done {
		through = s.entries[0].number
		s.entries = s.entries[1:]
	}
	return through
}

func (s *logSession) finish(e *logEntry, done bool) {
	if e != nil && done {
		e.done, e.row = true, nil
	}
}

// entry finds a message by its number; numbers are consecutive.
func (s *logSession) entry(ref uint64) *logEntry {
	if len(s.entries) == 0 || ref < s.entries[0].number || ref-s.entries[0].number >= uint64(len(s.entries)) {
		return nil
	}
	return s.entries[ref-s.entries[0].number]
}

// bury writes rows into the dead-letter table as they came by the log. The session goes on when tables are changed,
// so the dead-letter table is looked at each time.
func (s *logSession) bury(ctx context.Context, conn *pgx.Conn, dead []relay.Dead) error {
	if len(dead) == 0 {
		return nil
	}
	if s.table.Dead == nil {
		return relay.Final(fmt.Errorf("%w (table %s: %w)", existing.ErrNoPlace, s.table.Name, dead[0].Err))
	}
	var err error
	if s.table.Dead, err = existing.ReadTable(ctx, conn, s.table.Mapping.Failure.DeadTable); err != nil {
		return err
	}
	b := &pgx.Batch{}
	for i := range dead {
		s.mu.Lock()
		e := s.entry(dead[i].Delivery.Ref)
		s.mu.Unlock()
		if e == nil || e.row == nil {
			return errors.New("a dead letter is not among the messages in flight")
		}
		sql, args := s.table.BurySQL(conn, e.row, &dead[i])
		b.Queue(sql, args...)
	}
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("keep dead letters: %w", s.table.ExplainDead(err))
	}
	return nil
}

// Due looks for no released rows: the table has no column by which an operator could release a blocked lane.
func (s *logSession) Due(_ context.Context, q relay.DueQuery) ([]relay.HeldLane, error) {
	return s.holds.Due(time.Now(), &q), s.failure()
}

func (s *logSession) held(_ context.Context, lane string, limit int) ([]relay.Delivery, error) {
	return s.holds.Messages(lane, limit), s.failure()
}

// Close confirms what is settled and releases the slot to other relays.
func (s *logSession) Close(context.Context) error {
	err := s.tail.Close()
	if lost := s.link.Failure(); lost != nil {
		err = lost
	} else if err != nil {
		err = fmt.Errorf("%w: %w", relay.ErrLeaseLost, err)
	}
	if closeErr := s.close(nil); err == nil {
		err = closeErr
	}
	return err
}
