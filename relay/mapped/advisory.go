package mapped

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/dial"
)

// Advisory is the strategy of one active relay: it holds an advisory lock for as long as it reads, the
// others wait for it. Rows are read in the order of the table and marked or deleted when they are
// delivered; the messages of a key keep their order if the table is ordered by a sequence.
//
// Everything goes through one shard, so calls to the broker follow one another in the order of the table.
// A message that has to wait lets other keys go by, unless the key of the mapping is a constant.
//
// The lock is a session's, and so is what Settle writes: a relay that has lost it marks nothing any more.
// A pooler in transaction mode is refused, with ErrTransactionPooler.
type Advisory struct{ source }

var (
	_ relay.Noting  = (*Advisory)(nil)
	_ relay.Session = (*advisorySession)(nil)
)

// NewAdvisory returns a source. It reports every fault of m and cfg at once and connects to nothing yet.
func NewAdvisory(conn *pgx.ConnConfig, m mapping.Mapping, cfg Config) (*Advisory, error) {
	a := &Advisory{}
	if err := a.init(conn, m, cfg); err != nil {
		return nil, err
	}
	if err := needsDone(m); err != nil {
		return nil, err
	}
	return a, nil
}

func needsDone(m mapping.Mapping) error {
	if m.Done.How == "" {
		return fmt.Errorf("mapped: the mapping of table %q doesn't say how delivered rows are marked, which this strategy needs", m.Table)
	}
	return nil
}

// Acquire waits for the lock. Errors that waiting can't cure are marked by outbox.Permanent: a mapping that
// doesn't fit the table, a standby, a pooler in transaction mode.
func (a *Advisory) Acquire(ctx context.Context) (relay.Session, error) {
	return a.acquire(ctx, func(ctx context.Context) (_ relay.Session, err error) {
		var locked, reading *pgx.Conn
		t, pooled, err := a.open(ctx, &locked, &reading)
		if err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				hangUp(locked)
				hangUp(reading)
			}
		}()
		if pooled != nil {
			return nil, pooled
		}
		if err := a.awaitLock(ctx, locked, t.lock(), "another relay holds the table's lock"); err != nil {
			return nil, err
		}
		s := &advisorySession{source: &a.source, reader: newReader(t, reading, a.cfg.PageBytes, t.scanSQL), marks: newStatements(t, false, false, "", &a.receipts, a.cfg.Logger), holds: newHolds()}
		s.own = []uint32{dial.PID(locked), dial.PID(reading)}
		s.link = newLink(locked, a.cfg.Lease, ping)
		s.pace = pace{cfg: &a.cfg, broken: s.link.broken}
		return s, nil
	})
}

// advisorySession owns the table. Next runs in one goroutine, the rest in another; they share the ledger
// and the holds.
type advisorySession struct {
	source *source
	link   *link // has the lock
	marks  *statements
	later  later
	ledger ledger
	holds  *holds
	own    []uint32

	// The rest belongs to Next.
	reader *reader
	pace   pace
	rest   []relay.Delivery // read and not returned yet
}

func (s *advisorySession) Next(ctx context.Context, limit int) (relay.Batch, error) {
	for len(s.rest) == 0 {
		if err := s.pace.await(ctx); err != nil {
			return relay.Batch{}, err
		}
		if err := s.link.failure(); err != nil {
			return relay.Batch{}, err
		}
		if err := s.storeLater(ctx); err != nil {
			return relay.Batch{}, err
		}
		if s.holds.size()+len(s.later.all()) >= s.source.maxHolds() {
			s.pace.polled(false, false)
			continue
		}
		size := s.reader.size(limit)
		ds, rows, err := s.reader.poll(ctx, size, s.own, s.known, "")
		if err != nil {
			return relay.Batch{}, err
		}
		s.pace.polled(len(ds) > 0, len(ds) == size)
		for i := range ds {
			ds[i].Shard = 0
		}
		s.ledger.add(ds, rows, s.reader.table.numbered())
		s.rest = ds
	}
	return slice(&s.rest, limit), nil
}

// slice cuts the next batch off a page.
func slice(rest *[]relay.Delivery, limit int) relay.Batch {
	n := min(limit, len(*rest))
	b := relay.Batch{Deliveries: (*rest)[:n:n]}
	*rest = (*rest)[n:]
	return b
}

// known lists the rows behind from that are in flight, wait for another attempt, or are to be marked.
func (s *advisorySession) known(from int64) []string {
	return s.later.known(s.holds.above(from, s.ledger.above(from, nil)))
}

// storeLater marks rows that were locked when they should have been.
func (s *advisorySession) storeLater(ctx context.Context) error {
	if len(s.later.all()) == 0 {
		return nil
	}
	ctx, cancel := s.source.lasting(ctx)
	defer cancel()
	return s.link.do(func(conn *pgx.Conn) error {
		_, err := s.marks.store(ctx, conn, &outcomes{}, &s.later)
		return err
	})
}

func (s *advisorySession) Settle(ctx context.Context, settlement relay.Settlement) error {
	x := split(settlement, s.ledger.through(settlement.Through))
	var o outcomes
	x.of(&o, x.entries, false)
	x.held(&o, s.holds)
	err := s.link.do(func(conn *pgx.Conn) error {
		_, err := s.marks.store(ctx, conn, &o, &s.later)
		return err
	})
	if err != nil {
		return err
	}
	// What is set aside is remembered before it leaves the ledger: Next must know of it at any time.
	x.remember(s.holds)
	s.ledger.settle(len(x.entries))
	return nil
}

func (s *advisorySession) Lanes(ctx context.Context, limit int) ([]relay.HeldLane, error) {
	if blocked := s.holds.blocked(); len(blocked) > 0 {
		err := s.link.do(func(conn *pgx.Conn) error {
			refs, err := s.reader.table.released(ctx, conn, blocked)
			for _, ref := range refs {
				s.holds.unblock(ref)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	lanes := s.holds.heads(limit)
	for i := range lanes {
		lanes[i].Shard = 0
	}
	return lanes, nil
}

func (s *advisorySession) Held(ctx context.Context, lane string, limit int) (held []relay.Delivery, err error) {
	list := s.holds.first(lane, limit)
	for len(list) > 0 && len(held) == 0 {
		err := s.link.do(func(conn *pgx.Conn) error {
			ds, rows, err := s.reader.table.reread(ctx, conn, list, "")
			if err != nil {
				return err
			}
			var missing map[uint64]bool
			held, missing = restore(list, ds, rows, nil)
			s.holds.gone(lane, missing)
			return nil
		})
		if err != nil {
			return nil, err
		}
		list = s.holds.first(lane, limit)
	}
	for i := range held {
		held[i].Shard = 0
	}
	return held, nil
}

func (s *advisorySession) Expires() time.Time { return s.link.expires() }

func (s *advisorySession) Close(ctx context.Context) error {
	hangUp(s.reader.conn)
	err := s.link.close(func(conn *pgx.Conn) error {
		if _, err := s.marks.store(ctx, conn, &outcomes{}, &s.later); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock("+s.reader.table.lock()+")")
		return err
	})
	s.source.active.Store(false)
	return err
}
