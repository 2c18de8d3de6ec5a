package polling

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/dial"
)

// Table is the table's side of a strategy that reads somewhere else most of the time: it has the lease,
// the holds and the dead letters, it reads the outbox up to a snapshot at which the other reader begins,
// and it keeps the cursor while that one reads.
//
// Next, StopAt and Behind belong to the goroutine that reads; the rest is as for a relay.Session.
type Table struct {
	*snapshotSession

	decoder  decoder
	boundary *cursors.Snapshot
	pausedAt time.Time // reading paused last at the boundary
}

// At the boundary reading pauses until everything is settled, which takes a moment. But what isn't settled may
// wait for its broker, and meanwhile the others are not to wait: after stopFor reading goes on, and pauses again
// after stopEvery. The windows then hold more than the boundary, as they may.
const (
	stopFor   = 250 * time.Millisecond
	stopEvery = 2 * time.Second
)

// ErrReached means that everything up to the snapshot that StopAt named is settled.
var ErrReached = errors.New("polling: everything up to the boundary is settled")

// TableOf returns the table's side of a session of [Snapshot]; false while the destination is being split
// into another number of shard groups: that session has to come to its end first.
func TableOf(session relay.Session) (*Table, bool) {
	s, ok := session.(*snapshotSession)
	if !ok {
		return nil, false
	}
	return &Table{snapshotSession: s}, true
}

// Next is the session's, except that it returns an empty batch after each look that found nothing, and
// ErrReached once it has come to where StopAt said.
func (t *Table) Next(ctx context.Context, limit int) (relay.Batch, error) {
	s := t.snapshotSession
	if len(s.rest) == 0 {
		if err := s.lease.failure(); err != nil {
			return relay.Batch{}, err
		}
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
		s.page, s.rest = pg, pg.deliveries
		pg.users.Store(1)
	}
	return s.Next(ctx, limit)
}

// Behind reports whether there is a backlog that is read in pages.
func (t *Table) Behind() bool { return t.log != nil }

// StopAt makes Next pause as soon as the windows that it has opened hold everything that snapshot sees, and
// return ErrReached when they are settled. They may hold more: Prev says what.
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
	t.position() // closes what is settled
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.cursor.windows) == 0
}

// pause is how long to read nothing at the boundary; not positive: not now.
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
	case <-t.lease.broken:
		return t.lease.failure()
	case <-t.settled:
	case <-timer.C:
	}
	return nil
}

// Prev is the snapshot of which everything is settled, and whether nothing beyond it was read.
func (t *Table) Prev() (snapshot string, alone bool) {
	at := t.position()
	return at.Prev, len(at.Windows) == 0
}

// Stand moves the cursor to a snapshot of which everything is settled, by whatever way it was delivered.
// It is stored by the next write, unless that was what Write has just done.
func (t *Table) Stand(snapshot string) error {
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

// Epoch is the lease's, which every statement that writes has to name.
func (t *Table) Epoch() int64 { return t.lease.epoch }

// Failed is closed when nothing can be written any more; Failure tells why.
func (t *Table) Failed() <-chan struct{} { return t.lease.broken }

// Failure is nil while the session can write.
func (t *Table) Failure() error { return t.lease.failure() }

// Write runs f on the connection that writes, after all earlier writes. f renews the lease in the cursor's
// row WHERE epoch is Epoch, and reports whether there was one; what it does besides is one transaction with that.
// After an error but relay.ErrLeaseLost its outcome is unknown; after any error the session is over.
func (t *Table) Write(ctx context.Context, f func(context.Context, *pgx.Conn) (bool, error)) error {
	l := t.lease
	l.link.mu.Lock()
	defer l.link.mu.Unlock()
	if err := l.failure(); err != nil {
		return err
	}
	ctx, cancel := context.WithDeadline(ctx, l.expires())
	defer cancel()
	since := time.Now()
	owned, err := f(ctx, l.link.conn)
	if err == nil && !owned {
		err = relay.ErrLeaseLost
	}
	if err == nil {
		err = dial.Replicated(l.link.conn)
	}
	if err != nil {
		return l.fail(err)
	}
	l.extend(since)
	return nil
}

// Read runs f on the same connection between writes. An error ends the session.
func (t *Table) Read(f func(*pgx.Conn) error) error { return t.lease.query(f) }

// StoreOutcomes stores the holds and dead letters of a settlement, whose messages are all in the table. See [Careful].
func (t *Table) StoreOutcomes(ctx context.Context, tx pgx.Tx, s *relay.Settlement) error {
	return t.source.storeOutcomes(ctx, tx, s)
}

// MessageColumns names the columns that [Page.Add] takes, in their order.
func MessageColumns() []string {
	names := strings.Split(messageColumns, ",")
	for i := range names {
		names[i] = strings.TrimPrefix(strings.TrimSpace(names[i]), "m.")
	}
	return names
}

// Page collects messages into batches. Small ones share its memory: each with blocks of its own would keep much more
// than there is in it. It belongs to the goroutine that reads; batches are recycled by any.
type Page struct {
	table *Table
	pg    *page

	// Where the next batch begins.
	from, fromBytes int
}

// NewPage returns an empty page.
func (t *Table) NewPage() *Page {
	pg := t.pool.get()
	pg.users.Store(1) // until Drop
	return &Page{table: t, pg: pg}
}

// Add decodes a row of MessageColumns in binary format, nil for NULL. What the row points to is copied.
func (p *Page) Add(row [][]byte) (*relay.Delivery, error) {
	return p.table.decoder.decode(p.pg, row)
}

// Len is the number of messages that are in no batch yet, Bytes about what they take.
func (p *Page) Len() int   { return len(p.pg.deliveries) - p.from }
func (p *Page) Bytes() int { return p.pg.arena.bytes - p.fromBytes }

// Batch returns them, and leaves the page to those that follow.
func (p *Page) Batch() relay.Batch {
	n := len(p.pg.deliveries)
	batch := relay.Batch{Deliveries: p.pg.deliveries[p.from:n:n], Recycle: p.table.recycler(p.pg)}
	p.pg.users.Add(1)
	p.from, p.fromBytes = n, p.pg.arena.bytes
	return batch
}

// Full reports whether what follows is to have another page.
func (p *Page) Full() bool { return p.pg.arena.bytes >= blockSize*3/4 || len(p.pg.deliveries) >= 1000 }

// Drop ends the page. Its batches last until they are recycled.
func (p *Page) Drop() { p.table.recycler(p.pg)() }

// As names the owner of a source that has no Registration, so that one that follows takes its lease back at
// once. That no other uses the name at the same time is up to the caller.
func (s *Snapshot) As(owner string) { s.owner = owner }
