package mapped

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sort"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/relay/mapped/internal/marking"
	"github.com/pgoutbox/outbox/relay/mapped/internal/pending"
	"github.com/pgoutbox/outbox/relay/mapped/internal/reading"
	"github.com/pgoutbox/outbox/schema"
)

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// offsetSession owns the offsets of a group. It changes no row.
//
// A row that is set aside keeps its offset back. At most MaxHolds rows behind it are delivered, and they come again
// after a restart.
type offsetSession struct {
	*session
	offsets *offsets

	mu      sync.Mutex
	token   int64     // of the lease
	renewed time.Time // when the lease was last extended
	parts   map[partName]*part

	// The rest belongs to Next.
	page    reading.PageSize
	lookAt  time.Time // when to look for new topics and partitions
	refused refusedOffsets
	horizon reading.Horizon // of ids that come from a sequence
}

var _ strategy = (*offsetSession)(nil)

func newOffset(ctx context.Context, x *session) (relay.Session, error) {
	src, t, cfg := x.source, x.table, &x.source.cfg
	o, err := x.prepareOffsets(ctx)
	if err != nil {
		return nil, err
	}
	mayTakeBack := x.pooled == nil && o.owner
	if mayTakeBack {
		// No other relay has this name while we hold the lock.
		lock := t.NameLock(fmt.Sprintf("%s/%d/%d", src.owner, cfg.Group, cfg.Groups))
		if err := src.awaitLock(ctx, x.conn, lock, "another relay of this name lives"); err != nil {
			return nil, err
		}
	}
	since, token, err := o.take(ctx, x.conn, src, mayTakeBack)
	if err != nil {
		return nil, err
	}
	s := &offsetSession{session: x, offsets: o, token: token, renewed: since, parts: make(map[partName]*part),
		page: reading.PageSize{Least: reading.MinPage, PageBytes: cfg.PageBytes}, horizon: reading.NewHorizon(t)}
	if x.pooled == nil {
		s.locks()
	}
	s.begin(s, s.renew)
	return s, nil
}

// prepareOffsets is prepare for a strategy that moves an offset.
func (s *session) prepareOffsets(ctx context.Context) (*offsets, error) {
	src, t, byTransaction := s.source, s.table, s.source.strategy == mapping.XMin
	if t.Info.Column(t.Mapping.ID).Kind != mapping.KindInteger {
		return nil, outbox.Permanent(fmt.Errorf("%w: column %q of table %s is of type %s, but an offset has to be a whole number",
			mapping.ErrMapping, t.Mapping.ID, t.Name, t.IDType))
	}
	if !byTransaction {
		if err := checkNumbers(src, t); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, dial.PrepareWithin)
	defer cancel()
	s.statements = marking.NewStatements(t, true, false, "", nil, src.cfg.Logger)
	return resolveOffsets(ctx, s.conn, t, byTransaction, src.owner, src.cfg)
}

type partName struct {
	topic     string
	partition int64
}

// part is the state of a topic and partition: how far it is read, and which of its rows are not done. The offset in the
// database stays before the first of these.
type part struct {
	name    partName
	read    offset
	settled offset
	entries []partEntry // in order
	moved   bool        // settled is not yet stored
}

// refusedOffsets are topics and partitions that the table of offsets can't have: their rows wait. All others are read.
type refusedOffsets struct {
	names map[partName]bool
	err   error     // about one of them
	until time.Time // then they are tried again: a person has to repair something first
}

type offset struct {
	transaction string
	id          int64
}

type partEntry struct {
	offset offset
	ref    uint64
	done   bool
	held   bool
}

// advance moves the offset over rows that are done.
func (p *part) advance() {
	for len(p.entries) > 0 && p.entries[0].done {
		p.settled, p.moved = p.entries[0].offset, true
		p.entries = p.entries[1:]
	}
}

// full means that no more may be read: too many rows wait behind one that is set aside.
func (p *part) full(bound int) bool {
	return len(p.entries) > 0 && p.entries[0].held && len(p.entries) >= bound
}

func (s *offsetSession) take(ctx context.Context, limit int) ([]relay.Delivery, error) {
	if err := s.look(ctx); err != nil {
		return nil, err
	}
	return s.read(ctx, s.page.Rows(limit))
}

// checkNumbers checks, or warns about, where ids come from when they alone give the order.
func checkNumbers(s *Source, t *existing.Table) error {
	id := t.Info.Column(t.Mapping.ID)
	switch {
	case t.Along == existing.AlongSequence:
		return nil
	case id.Sequence != 0:
		return outbox.Permanent(fmt.Errorf("%w: table %s: %s, and a row that commits after a higher id was read would be lost, "+
			"whatever lock its writer takes; let ids ascend as they are drawn, all from one sequence: "+
			"ALTER SEQUENCE … INCREMENT 1 NO CYCLE CACHE 1",
			mapping.ErrMapping, t.Name, id.Disorder()))
	}
	s.cfg.Logger.Warn("ids don't come from a sequence: a row that commits after a higher id was read is lost, so every "+
		"writer must draw its id and insert under a lock that conflicts with itself",
		"relay", s.owner, "table", s.mapping.Table, "column", t.Mapping.ID)
	return nil
}

const (
	lookEvery = 10 * time.Millisecond

	// lookShare limits the search for new topics to one part in this many of the time.
	lookShare = 50
)

// look finds topics and partitions that have their first messages, and loads their offsets.
func (s *offsetSession) look(ctx context.Context) error {
	started := time.Now()
	if started.Before(s.lookAt) {
		return nil
	}
	if started.After(s.refused.until) {
		s.refused = refusedOffsets{}
	}
	unknown, err := s.newParts(ctx)
	if err != nil {
		return err
	}
	if len(unknown) > 0 {
		if err := s.load(ctx, unknown); err != nil {
			return err
		}
	}
	s.lookAt = time.Now().Add(max(lookEvery, lookShare*time.Since(started)))
	return nil
}

// newParts lists the topics and partitions with messages of which the offset is not loaded.
func (s *offsetSession) newParts(ctx context.Context) (unknown []partName, err error) {
	var name partName
	rows, _ := s.reading.Query(ctx, s.offsets.pairs) // its error is returned with the rows
	_, err = pgx.ForEachRow(rows, []any{&name.topic, &name.partition}, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.parts[name] == nil && !s.refused.names[name] {
			unknown = append(unknown, name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for topics: %w", existing.Explain(err))
	}
	return unknown, nil
}

func (s *offsetSession) load(ctx context.Context, names []partName) error {
	topics, partitions := topicsAndPartitions(names)
	ctx, cancel := s.source.lasting(ctx)
	defer cancel()
	return s.link.Do(func(conn *pgx.Conn) error {
		s.mu.Lock()
		token := s.token
		s.mu.Unlock()
		if err := s.insert(ctx, conn, names, token); err != nil {
			return fmt.Errorf("insert offsets: %w", existing.Explain(err))
		}
		if _, err := conn.Exec(ctx, s.offsets.adopt, topics, partitions, token); err != nil {
			return fmt.Errorf("take over offsets: %w", existing.Explain(err))
		}
		rows, err := conn.Query(ctx, s.offsets.load, topics, partitions, token)
		if err != nil {
			return fmt.Errorf("read offsets: %w", existing.Explain(err))
		}
		var name partName
		var at offset
		var foreign bool
		_, err = pgx.ForEachRow(rows, []any{&name.topic, &name.partition, &at.transaction, &at.id, &foreign}, func() error {
			if foreign {
				return s.errForeign(name, at)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.parts[name] = &part{name: name, read: at, settled: at}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read offsets: %w", existing.Explain(err))
		}
		return nil
	})
}

// insert inserts offsets. If their table can't have some, it inserts the others.
func (s *offsetSession) insert(ctx context.Context, conn *pgx.Conn, names []partName, token int64) error {
	topics, partitions := topicsAndPartitions(names)
	_, err := conn.Exec(ctx, s.offsets.insert, topics, partitions, token)
	code := sqlstate.Of(err)
	switch {
	case !schema.IsDataError(err) || code == "23502": // a column without a value is none for any
		return err
	case len(names) > 1:
		for i := range names {
			if err := s.insert(ctx, conn, names[i:i+1], token); err != nil {
				return err
			}
		}
		return nil
	}
	if s.refused.names == nil {
		s.refused = refusedOffsets{names: make(map[partName]bool), until: time.Now().Add(marking.AgainAfter)}
	}
	s.refused.names[names[0]] = true
	table, repair := s.table.Mapping.Offsets.Table, "let that constraint allow it"
	switch code[:2] {
	case "22":
		repair = "run: ALTER TABLE " + table + " ALTER COLUMN topic TYPE text, ALTER COLUMN partition TYPE bigint"
	case "54":
		repair = "replace the unique index, in which such a topic has no room; run: " +
			"CREATE UNIQUE INDEX ON " + table + " (md5(topic), partition)"
	}
	s.refused.err = fmt.Errorf("topic %.200q, partition %d: its messages wait, because table %s can't have its offset: %w; %s",
		names[0].topic, names[0].partition, table, err, repair)
	return nil
}

func topicsAndPartitions(names []partName) (topics []string, partitions []int64) {
	for _, n := range names {
		topics, partitions = append(topics, n.topic), append(partitions, n.partition)
	}
	return topics, partitions
}

// read takes the next rows of every topic and partition, about size in total.
func (s *offsetSession) read(ctx context.Context, size int) ([]relay.Delivery, error) {
	s.mu.Lock()
	var open []*part
	s.full = s.refused.err
	for _, p := range s.parts {
		if !p.full(s.source.cfg.MaxHolds) {
			open = append(open, p)
			continue
		}
		s.full = fmt.Errorf("topic %.200q, partition %d: %d messages were read behind one that is set aside, and MaxHolds allows no more: "+
			"nothing new of this partition is read until that one is delivered or dead", p.name.topic, p.name.partition, len(p.entries))
	}
	// The parts with the fewest messages on their way are read first.
	sort.Slice(open, func(i, j int) bool { return len(open[i].entries) < len(open[j].entries) })
	s.mu.Unlock()
	if len(open) == 0 {
		s.pace.polled(false, false)
		return nil, nil
	}
	highest, more, err := s.highestFinal(ctx)
	if err != nil {
		return nil, err
	}
	names := make([]partName, len(open))
	transactions, ids := make([]string, len(open)), make([]int64, len(open))
	for i, p := range open {
		names[i], transactions[i], ids[i] = p.name, p.read.transaction, p.read.id
	}
	topics, partitions := topicsAndPartitions(names)
	each := max(size/len(open), min(size, 16))
	ds, rows, err := s.table.QueryEach(ctx, s.reading, &s.free, readPart, true,
		s.offsets.scan, topics, partitions, transactions, ids, each, highest)
	if err != nil {
		return nil, fmt.Errorf("poll: %w", existing.Explain(err))
	}
	s.page.Observe(ds)
	s.pace.polled(len(ds) > 0 || more, len(ds) >= each)
	s.ledger.Add(ds, rows, true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range ds {
		p := open[rows[i].Place-1]
		p.read = offset{rows[i].Token, ds[i].Position}
		p.entries = append(p.entries, partEntry{offset: p.read, ref: ds[i].Ref})
	}
	return ds, nil
}

// highestFinal returns the highest id up to which every number is committed or never will be, and whether higher ones
// were drawn since the last call. Up to that id, ids are read once and in order, whether or not their writers take
// turns: an INSERT locks the table before it draws its id (see reading.Horizon). A later statement reads the rows.
func (s *offsetSession) highestFinal(ctx context.Context) (highest int64, more bool, err error) {
	if s.offsets.look == "" {
		return math.MaxInt64, false, nil
	}
	before := s.horizon.Candidate
	var writers []string
	var drawn *int64
	if err := s.reading.QueryRow(ctx, s.offsets.look, s.horizon.Bound, s.own).Scan(&highest, &writers, &drawn); err != nil {
		return 0, false, fmt.Errorf("look for writers: %w", existing.Explain(err))
	}
	if drawn != nil {
		if err := s.refuseAhead(highest, *drawn); err != nil {
			return 0, false, err
		}
	}
	s.horizon.Advance(time.Now(), false, 0, highest, writers, reading.Scan{Complete: true, Hidden: math.MaxInt64})
	return s.horizon.Bound, s.horizon.Candidate > before, nil
}

// refuseAhead returns an error if an offset or a row is beyond what the sequence has drawn: what it draws next would be
// behind an offset, and never be read.
func (s *offsetSession) refuseAhead(highest, drawn int64) error {
	t := s.table
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, p := range s.parts {
		if p.read.id > drawn {
			return outbox.Permanent(fmt.Errorf("the offset of topic %q and partition %d in %s is %d, and the sequence of table %s stands "+
				"at %d: rows up to the offset would be lost. The sequence was set back (TRUNCATE … RESTART IDENTITY, setval): with all "+
				"relays stopped, set last_processed_id to the last id that was delivered, or delete that offset if none was",
				name.topic, name.partition, t.Mapping.Offsets.Table, p.read.id, t.Name, drawn))
		}
	}
	if highest > drawn {
		return outbox.Permanent(fmt.Errorf("table %s has had a row with the id %d, and its sequence stands at %d: rows that it "+
			"numbers later would be lost behind that offset. The row was numbered by hand, or the sequence was set back: set "+
			"the sequence to that id by setval, or give the row a number of the sequence", t.Name, highest, drawn))
	}
	return nil
}

// errForeign is the error for numbers of transactions that this cluster has not reached.
func (s *offsetSession) errForeign(name partName, at offset) error {
	return outbox.Permanent(fmt.Errorf("topic %q and partition %d of table %s, or its offset %s/%d in %s, has the number of a transaction "+
		"that has not begun in this cluster: its rows would not be delivered. They came by a dump from another cluster: "+
		"docs/mapping.md, \"After a dump\", has the statements that renumber them",
		name.topic, name.partition, s.table.Name, at.transaction, at.id, s.table.Mapping.Offsets.Table))
}

// readPart reads the columns of a scan after those of the table: the number of the row's part, its partition, its
// transaction.
func readPart(d *relay.Delivery, r *existing.Row, v [][]byte) error {
	if len(v) != 3 || len(v[0]) != 8 || len(v[1]) != 8 {
		return existing.ErrRow
	}
	r.Place = int64(binary.BigEndian.Uint64(v[0]))
	r.Token = string(v[2])
	d.Shard = int(binary.BigEndian.Uint64(v[1]) & math.MaxInt64 % schema.ShardCount)
	return nil
}

// entry finds a row among those that are not done.
func (s *offsetSession) entry(ref uint64) (*part, *partEntry) {
	for _, p := range s.parts {
		i := sort.Search(len(p.entries), func(i int) bool { return p.entries[i].ref >= ref })
		if i < len(p.entries) && p.entries[i].ref == ref {
			return p, &p.entries[i]
		}
	}
	return nil, nil
}

func (s *offsetSession) Settle(ctx context.Context, settlement relay.Settlement) error {
	return s.link.Do(func(conn *pgx.Conn) error {
		sorted := pending.Sort(settlement, s.ledger.Through(settlement.Through))
		o := sorted.Outcomes(s.holds, false)
		o.Delivered, o.Waiting = nil, nil // this strategy marks no row
		s.note(sorted)
		if err := s.store(ctx, conn, o); err != nil {
			return err
		}
		s.remember(sorted)
		return nil
	})
}

// note records in the parts which rows are done and which are set aside.
func (s *offsetSession) note(sorted *pending.Sorted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	through := uint64(0)
	if n := len(sorted.Entries); n > 0 {
		through = sorted.Entries[n-1].Ref
	}
	for _, p := range s.parts {
		for i := range p.entries {
			e := &p.entries[i]
			if e.ref > through {
				break
			}
			if sorted.HoldByRef[e.ref] != nil {
				e.held = true
			} else if !e.held {
				e.done = true
			}
		}
	}
	finish := func(d *relay.Delivery) {
		if _, e := s.entry(d.Ref); e != nil {
			e.done = true
		}
	}
	for _, d := range sorted.HeldDelivered {
		finish(d)
	}
	for i := range sorted.HeldDead {
		finish(sorted.HeldDead[i].Delivery)
	}
	for _, p := range s.parts {
		p.advance()
	}
}

// store moves the offsets and writes dead letters in one transaction, if this session still has the offsets.
func (s *offsetSession) store(ctx context.Context, conn *pgx.Conn, o *marking.Outcomes) error {
	s.mu.Lock()
	token := s.token
	var moved []*part
	var names []partName
	var transactions []string
	var ids []int64
	for _, p := range s.parts {
		if p.moved {
			moved, names = append(moved, p), append(names, p.name)
			transactions, ids = append(transactions, p.settled.transaction), append(ids, p.settled.id)
		}
	}
	s.mu.Unlock()
	if len(moved) == 0 && o.Empty() {
		return nil
	}
	topics, partitions := topicsAndPartitions(names)
	move := func(db execer) error {
		tag, err := db.Exec(ctx, s.offsets.move, topics, partitions, transactions, ids, token)
		if sqlstate.Of(err) == "22003" {
			return outbox.Permanent(fmt.Errorf("move the offsets: %w: run: ALTER TABLE %s ALTER COLUMN last_processed_id TYPE bigint",
				err, s.table.Mapping.Offsets.Table))
		}
		if err != nil {
			return fmt.Errorf("move the offsets: %w", existing.Explain(err))
		}
		if tag.RowsAffected() != int64(len(names)) {
			return errOffsetsLost
		}
		return nil
	}
	if o.Empty() {
		if err := move(conn); err != nil {
			return err
		}
	} else if err := s.storeDead(ctx, conn, o, token, move); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range moved {
		p.moved = false
	}
	return nil
}

func (s *offsetSession) storeDead(ctx context.Context, conn *pgx.Conn, o *marking.Outcomes, token int64, move func(execer) error) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("keep dead letters: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	// If a row waits, no offset moves, and the update of offsets doesn't check the lease. So this statement does.
	tag, err := tx.Exec(ctx, s.offsets.check, token)
	if err != nil {
		return fmt.Errorf("keep dead letters: %w", existing.Explain(err))
	}
	if tag.RowsAffected() != 1 {
		return errOffsetsLost
	}
	if err := move(tx); err != nil {
		return err
	}
	b := &pgx.Batch{}
	if err := s.statements.Queue(conn, b, o, &marking.Outcomes{}); err != nil {
		return err
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("keep dead letters: %w", s.table.ExplainDead(err))
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("keep dead letters: %w", err)
	}
	return nil
}

// renew extends the lease of all offsets of the group.
func (s *offsetSession) renew(ctx context.Context, conn *pgx.Conn) error {
	s.mu.Lock()
	token := s.token
	s.mu.Unlock()
	if err := existing.RefuseHidden(ctx, conn, s.table.Name); err != nil {
		return err
	}
	since := time.Now()
	rows, err := conn.Query(ctx, s.offsets.renew, token, s.source.cfg.Lease.Microseconds())
	if err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	var itself, ours bool
	_, err = pgx.ForEachRow(rows, []any{&token, &itself}, func() error { ours = ours || itself; return nil })
	if err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	// The offsets of topics prove nothing: this session may have inserted one after a successor had taken the rest.
	if !ours {
		return errOffsetsLost
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token, s.renewed = token, since
	return nil
}

func (s *offsetSession) held(ctx context.Context, lane string, limit int) ([]relay.Delivery, error) {
	return s.reload(ctx, lane, limit, s.forget)
}

// forget counts rows that were deleted by another program as done.
func (s *offsetSession) forget(refs map[uint64]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref := range refs {
		if p, e := s.entry(ref); e != nil {
			e.done = true
			p.advance()
		}
	}
}

// Expires is the time before which no other relay can take the offsets.
func (s *offsetSession) Expires() time.Time {
	if s.link.Failure() != nil {
		return time.Time{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewed.Add(s.source.cfg.Lease)
}

// Close releases the offsets.
func (s *offsetSession) Close(ctx context.Context) error {
	return s.close(func(conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, s.offsets.release, s.token)
		if err != nil {
			return fmt.Errorf("give the offsets back: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return errOffsetsLost
		}
		return nil
	})
}
