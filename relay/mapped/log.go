package mapped

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/dial"
	"github.com/pgoutbox/outbox/relay/internal/wal"
)

// logSession owns a slot: what is inserted into the table is delivered in the order of commits, and no row is read or
// changed.
//
// The replication slot is all the memory that there is. It stands at a commit before everything that is not
// settled, so a crash, and a stop too, repeat the rest: a transaction of which a part was settled as a whole, and what
// was delivered behind a message that waits. A slot that is gone has lost what was committed meanwhile: Acquire reports it
// and makes no new one.
type logSession struct {
	*session
	tail *wal.Tail
	rows *logRows // of Next

	mu      sync.Mutex
	entries []*logEntry // not done with, or behind such a one, in order
}

var _ strategy = (*logSession)(nil)

// newLog waits until the link has the lock of the slot: the session that has it owns the slot.
func newLog(ctx context.Context, x *session) (relay.Session, error) {
	src := x.source
	if x.pooled != nil {
		return nil, x.pooled
	}
	var zone string
	if err := x.conn.QueryRow(ctx, "SELECT current_setting('TimeZone')").Scan(&zone); err != nil {
		return nil, fmt.Errorf("ask for the time zone: %w", err)
	}
	if err := src.awaitLock(ctx, x.conn, x.table.nameLock("slot "+src.cfg.Slot), "another relay reads the log"); err != nil {
		return nil, err
	}
	s := &logSession{session: x, rows: newLogRows(x.table, zone)}
	s.holds.whole = true
	s.begin(s, s.keep)
	tail, err := wal.OpenTail(ctx, src.conn, wal.TailConfig{
		Name: src.owner, Slot: src.cfg.Slot, Publication: src.cfg.Publication, Table: x.table.info.TableName(), Logger: src.cfg.Logger,
	})
	if err != nil {
		_ = s.link.close(nil) // the error is the one to tell
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tail = tail
	return s, nil
}

// keep says something on the connection that has the lock; once there is a stream, it asks whether that is sound.
func (s *logSession) keep(ctx context.Context, conn *pgx.Conn) error {
	s.mu.Lock()
	tail := s.tail
	s.mu.Unlock()
	if tail == nil {
		return ping(ctx, conn)
	}
	return tail.Sound(ctx, conn)
}

// logEntry is a row on its way. Its texts are kept for the case that it becomes a dead letter: its author may have
// deleted it from the table.
type logEntry struct {
	number     uint64
	row        *logRow
	done, held bool
}

// runAheadOfLog is how many messages are read behind one that waits. The slot keeps the log from there on.
const runAheadOfLog = 100_000

// Next returns without messages, after a while, when no more is to be read.
func (s *logSession) Next(ctx context.Context, limit int) (relay.Batch, error) {
	if err := s.failure(); err != nil {
		return relay.Batch{}, err
	}
	ds, err := s.take(ctx, limit)
	return relay.Batch{Deliveries: ds}, err
}

func (s *logSession) take(ctx context.Context, limit int) (ds []relay.Delivery, err error) {
	if s.full() {
		return nil, dial.Pause(ctx, s.source.cfg.PollIdle)
	}
	_, err = s.tail.Read(ctx, limit, func(i *wal.Insert) error {
		d, row, err := s.rows.read(i)
		if err != nil {
			return err
		}
		d.Ref, d.Position = i.Number, int64(i.Number)
		if s.table.numbered() {
			d.Position = number(row.id)
		}
		ds = append(ds, d)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.entries = append(s.entries, &logEntry{number: i.Number, row: row})
		return nil
	})
	if failure := s.failure(); failure != nil {
		err = failure // it has lost the right to the slot, and perhaps the stream for that reason
	}
	return ds, err
}

// full means that no more is read: too much is set aside, or stands behind what is.
func (s *logSession) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holds.size() >= s.source.maxHolds() || len(s.entries) >= runAheadOfLog && s.entries[0].held
}

// Settle stores dead letters, and then tells the server how far everything is settled. A crash between the two repeats
// a dead letter, which is stored once.
func (s *logSession) Settle(ctx context.Context, x relay.Settlement) error {
	return s.link.do(func(conn *pgx.Conn) error {
		if err := s.bury(ctx, conn, append(append([]relay.Dead(nil), x.Dead...), x.HeldDead...)); err != nil {
			return err
		}
		through := s.note(&x)
		for i := range x.Hold {
			s.holds.add(entry{ref: x.Hold[i].Delivery.Ref}, &x.Hold[i])
		}
		s.holds.tried(&x)
		if through == 0 {
			return nil
		}
		if err := s.tail.Settled(through); err != nil {
			return fmt.Errorf("%w: %w", relay.ErrLeaseLost, err)
		}
		return nil
	})
}

// note marks what is done with and what is set aside, and returns up to where everything is done; 0 if that is
// not further than before.
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

// entry finds a message: numbers follow one another.
func (s *logSession) entry(ref uint64) *logEntry {
	if len(s.entries) == 0 || ref < s.entries[0].number || ref-s.entries[0].number >= uint64(len(s.entries)) {
		return nil
	}
	return s.entries[ref-s.entries[0].number]
}

// bury writes rows into the table for dead letters as they came by the log.
func (s *logSession) bury(ctx context.Context, conn *pgx.Conn, dead []relay.Dead) error {
	if len(dead) == 0 {
		return nil
	}
	if s.table.dead == nil {
		return outbox.Permanent(fmt.Errorf("%w (table %s: %w)", errNoPlace, s.table.name, dead[0].Err))
	}
	b := &pgx.Batch{}
	for i := range dead {
		s.mu.Lock()
		e := s.entry(dead[i].Delivery.Ref)
		s.mu.Unlock()
		if e == nil || e.row == nil {
			return errors.New("a dead letter is not among the messages that are under way")
		}
		sql, args := s.table.burySQL(conn, e.row, &dead[i])
		b.Queue(sql, args...)
	}
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("keep dead letters: %w", explain(err))
	}
	return nil
}

// Lanes lists lanes of messages that wait. Nothing in the table lets a blocked one go on.
func (s *logSession) Lanes(_ context.Context, limit int) ([]relay.HeldLane, error) {
	return s.holds.heads(limit), s.failure()
}

func (s *logSession) Held(_ context.Context, lane string, limit int) ([]relay.Delivery, error) {
	return s.holds.messages(lane, limit), s.failure()
}

// Close confirms what is settled and lets another relay read.
func (s *logSession) Close(context.Context) error {
	err := s.tail.Close()
	if lost := s.link.failure(); lost != nil {
		err = lost
	} else if err != nil {
		err = fmt.Errorf("%w: %w", relay.ErrLeaseLost, err)
	}
	if closeErr := s.close(nil); err == nil {
		err = closeErr
	}
	return err
}
