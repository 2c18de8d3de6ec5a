package polling

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/holds"
	"github.com/pgoutbox/outbox/relay/internal/messages"
)

// Table is the part of a strategy that concerns the tables of the outbox, for a strategy that mostly reads another
// source. It has the lease, the holds and the dead letters. It reads the outbox up to a snapshot at which the other
// reader begins, and keeps the cursor while the other one reads.
//
// Next, StopAt and Behind belong to the goroutine that reads; the other methods are as in relay.Session.
type Table struct {
	*snapshotSession

	decoder  messages.Decoder
	boundary *cursors.Snapshot
	pausedAt time.Time // when reading last paused at the boundary
}

// At the boundary, reading pauses until everything is settled, which takes a moment. But unsettled messages may wait
// for their broker, and other messages must not wait with them. So after stopFor reading continues, and pauses again
// after stopEvery. The windows may then hold more than the boundary.
const (
	stopFor   = 250 * time.Millisecond
	stopEvery = 2 * time.Second
)

// ErrReached means that everything up to the snapshot that StopAt named is settled.
var ErrReached = errors.New("polling: everything up to the boundary is settled")

// TableOf returns the Table of a session of [Snapshot]. It returns false while the destination is being split into
// another number of shard groups; that session has to end first.
func TableOf(session relay.Session) (*Table, bool) {
	s, ok := session.(*snapshotSession)
	if !ok {
		return nil, false
	}
	return &Table{snapshotSession: s}, true
}

// Next is the session's Next, but it returns an empty batch after each poll that found nothing, and ErrReached once
// everything up to StopAt's snapshot is settled.
func (t *Table) Next(ctx context.Context, limit int) (relay.Batch, error) {
	s := t.snapshotSession
	if len(s.rest) == 0 {
		if err := s.lease.Failure(); err != nil {
			return relay.Batch{}, err
		}
		if err := s.keepOwn(ctx); err != nil {
			return relay.Batch{}, err
		}
		s.reader.rest.available = false // a Table returns after each poll, and soon
		size := max(limit, s.source.minPage)
		pg, err := s.readWindow(ctx, size)
		if err == nil && pg == nil {
			if t.stopped() {
				if t.allSettled() {
					return relay.Batch{}, ErrReached
				}
				if left := t.pause(); left > 0 {
					return relay.Batch{}, t.awaitSettlement(ctx, left)
				}
			}
			pg, err = s.poll(ctx, size)
		}
		if err != nil || pg == nil {
			return relay.Batch{}, err
		}
		s.page, s.rest = pg, pg.Deliveries
		pg.Start()
	}
	return s.Next(ctx, limit)
}

// Behind reports whether a backlog is being read in pages.
func (t *Table) Behind() bool { return t.log != nil }

// StopAt makes Next pause as soon as the windows that it has opened hold everything that snapshot sees, and return
// ErrReached when they are settled. They may hold more; Prev tells.
func (t *Table) StopAt(snapshot string) error {
	s, err := cursors.Parse(snapshot)
	if err != nil {
		return err
	}
	t.boundary = &s
	return nil
}

func (t *Table) stopped() bool {
	if t.boundary == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cursor.base.Covers(t.boundary)
}

func (t *Table) allSettled() bool {
	t.position() // closes the windows that are settled
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.cursor.windows) == 0
}

// pause is how long to stop reading at the boundary; zero or less: don't stop now.
func (t *Table) pause() time.Duration {
	if time.Since(t.pausedAt) >= stopEvery {
		t.pausedAt = time.Now()
	}
	return stopFor - time.Since(t.pausedAt)
}

func (t *Table) awaitSettlement(ctx context.Context, atMost time.Duration) error {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.lease.Ended():
		return t.lease.Failure()
	case <-t.settled:
	case <-timer.C:
	}
	return nil
}

// Prev returns the snapshot up to which everything is settled, and whether nothing beyond it was read.
func (t *Table) Prev() (snapshot string, alone bool) {
	at := t.position()
	return at.Prev, len(at.Windows) == 0
}

// MoveTo sets the cursor to a snapshot that is completely settled, whichever way it was delivered. The next write
// stores it, unless Write has just stored it.
func (t *Table) MoveTo(snapshot string) error {
	s, err := cursors.Parse(snapshot)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cursor = cursor{prev: s, base: s, ordinals: t.cursor.ordinals}
	t.boundary = nil
	return nil
}

// Epoch is the epoch of the lease; every statement that writes has to name it.
func (t *Table) Epoch() int64 { return t.lease.Epoch }

// Failed is closed when no further write is possible; Failure returns the reason.
func (t *Table) Failed() <-chan struct{} { return t.lease.Ended() }

// Failure returns nil while the session can write.
func (t *Table) Failure() error { return t.lease.Failure() }

// Write runs f on the connection that writes, after all earlier writes. f renews the lease in the cursor's row WHERE
// epoch is Epoch, and reports whether that row existed. Everything that f does must be one transaction. After an error
// other than relay.ErrLeaseLost its outcome is unknown; after any error the session is over.
func (t *Table) Write(ctx context.Context, f func(context.Context, *pgx.Conn) (bool, error)) error {
	return t.lease.RenewBy(ctx, f)
}

// Read runs f on the same connection between writes. An error ends the session.
func (t *Table) Read(f func(*pgx.Conn) error) error { return t.lease.Query(f) }

// StoreOutcomes stores the holds and dead letters of a settlement, all of whose messages are in the table.
func (t *Table) StoreOutcomes(ctx context.Context, tx pgx.Tx, s *relay.Settlement) error {
	return holds.Store(ctx, tx, t.source.destination, s)
}

// NewPage returns an empty page.
func (t *Table) NewPage() *messages.Collector { return messages.Collect(t.pool, &t.decoder) }
