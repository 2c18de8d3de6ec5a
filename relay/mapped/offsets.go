package mapped

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/dial"
)

// XMin is the strategy of virtual partitions with offsets: rows below the oldest transaction in progress are
// read by transaction id and id, and an offset for each topic and partition says how far they are
// delivered. No row is changed. Relays share the partitions by Groups; a partition goes through one shard,
// in order.
//
// Any open transaction that writes, anywhere in the cluster, holds up what commits after it; and a key's
// messages are inverted when a transaction takes its id before it waits for another that writes the key.
//
// A row that is set aside holds its offset back: rows behind it are delivered, at most MaxHolds, and
// again after a restart.
type XMin struct{ offsetSource }

// Serial is XMin by id alone, which keeps the order of keys. A row is read when whoever could still commit a lower id has
// ended: whoever has written to the table, and nobody else. So its writers need no lock. Where ids don't come from a sequence, or
// are drawn long before the INSERT, they have to take turns, see mapping.WriterLock.
type Serial struct{ offsetSource }

var (
	_ relay.Source  = (*XMin)(nil)
	_ relay.Source  = (*Serial)(nil)
	_ relay.Session = (*offsetSession)(nil)
)

type offsetSource struct {
	source
	byTransaction bool
}

// NewXMin returns a source. It reports every fault of m and cfg at once and connects to nothing yet.
func NewXMin(conn *pgx.ConnConfig, m mapping.Mapping, cfg Config) (*XMin, error) {
	s := &XMin{offsetSource{byTransaction: true}}
	if m.Offsets.Transaction == "" {
		return nil, fmt.Errorf("mapped: the mapping of table %q names no column of type xid8 for the transaction, which this strategy needs", m.Table)
	}
	return s, s.begin(conn, m, cfg)
}

// NewSerial returns a source. It reports every fault of m and cfg at once and connects to nothing yet.
func NewSerial(conn *pgx.ConnConfig, m mapping.Mapping, cfg Config) (*Serial, error) {
	s := &Serial{}
	return s, s.begin(conn, m, cfg)
}

func (s *offsetSource) begin(conn *pgx.ConnConfig, m mapping.Mapping, cfg Config) error {
	if m.Offsets.Table == "" {
		return fmt.Errorf("mapped: the mapping of table %q names no table of offsets, which this strategy needs", m.Table)
	}
	if m.Done.How != "" {
		return fmt.Errorf("mapped: the mapping of table %q says that delivered rows are marked (%s), but this strategy moves an offset and changes no row", m.Table, m.Done.How)
	}
	return s.init(conn, m, cfg)
}

// numbers says what is to be known about ids that are read in their order alone.
func (s *offsetSource) numbers(t *table) error {
	id := t.info.Column(t.mapping.ID)
	switch {
	case s.byTransaction || t.along == alongSequence:
		return nil
	case id.Sequenced:
		return outbox.Permanent(fmt.Errorf("%w: the sequence of column %q of table %s has CACHE %d: sessions draw numbers ahead, and one that commits after a higher "+
			"one was read would be lost, whatever lock its writer takes; run ALTER SEQUENCE … CACHE 1", mapping.ErrMapping, t.mapping.ID, t.name, id.Cache))
	}
	s.cfg.Logger.Warn("ids come from no sequence: a row that commits after a higher id was read is lost, so every writer has to draw and insert under a lock that conflicts with itself",
		"relay", s.owner, "table", s.mapping.Table, "column", t.mapping.ID)
	return nil
}

// Acquire waits until the group's offsets are free. Errors that waiting can't cure are marked by
// outbox.Permanent: tables that don't fit the mapping, a standby.
func (s *offsetSource) Acquire(ctx context.Context) (relay.Session, error) {
	return s.acquire(ctx, func(ctx context.Context) (_ relay.Session, err error) {
		var settling, reading *pgx.Conn
		defer func() {
			if err != nil {
				hangUp(settling)
				hangUp(reading)
			}
		}()
		t, pooled, err := s.open(ctx, &settling, &reading)
		if err != nil {
			return nil, err
		}
		if t.info.Column(t.mapping.ID).Kind != mapping.KindInteger {
			return nil, outbox.Permanent(fmt.Errorf("%w: column %q of table %s is of type %s, but an offset has to be a whole number",
				mapping.ErrMapping, t.mapping.ID, t.name, t.idType))
		}
		if err := s.numbers(t); err != nil {
			return nil, err
		}
		o, err := resolveOffsets(ctx, settling, t, s.byTransaction, s.owner, s.cfg)
		if err != nil {
			return nil, err
		}
		mayTakeBack := false
		if pooled == nil && o.owner {
			// Nobody else has this name while the lock is ours.
			if err := s.awaitLock(ctx, settling, t.nameLock(fmt.Sprintf("%s/%d/%d", s.owner, s.cfg.Group, s.cfg.Groups)), "another relay of this name lives"); err != nil {
				return nil, err
			}
			mayTakeBack = true
		}
		since, token, err := o.take(ctx, settling, &s.source, mayTakeBack)
		if err != nil {
			return nil, err
		}
		session := &offsetSession{source: &s.source, table: t, offsets: o, marks: newStatements(t, true, false, "", nil, s.cfg.Logger), holds: newHolds(),
			token: token, renewed: since, parts: make(map[partName]*part), reading: reading, size: reader{least: minPage, pageBytes: s.cfg.PageBytes}}
		session.horizon = newHorizon(t.along)
		if pooled == nil {
			session.own = []uint32{dial.PID(settling), dial.PID(reading)}
		}
		session.link = newLink(settling, s.cfg.Lease, session.renew)
		session.pace = pace{cfg: &s.cfg, broken: session.link.broken}
		return session, nil
	})
}
