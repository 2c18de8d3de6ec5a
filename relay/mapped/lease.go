package mapped

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/dial"
	"github.com/pgoutbox/outbox/schema"
)

// Lease is the strategy of short transactions: one statement reserves rows for a while, another marks or
// deletes them when they are delivered. Any number of relays share a table. The messages of a key keep
// their order on a table ordered by a sequence: what stands behind a row of its key that is reserved, or whose time has not
// come, waits.
//
// A reservation is renewed while its relay lives. Every mark names the reservation that it rests on, so a
// relay that was away for too long marks nothing that another has taken over meanwhile.
//
// A relay that restarts takes back at once what it had reserved: by its name if the mapping has a column
// for the owner, else, by a status, if it finds itself the only relay of the table. Otherwise rows wait
// until their reservation ends.
type Lease struct{ source }

var (
	_ relay.Noting  = (*Lease)(nil)
	_ relay.Session = (*leaseSession)(nil)
)

// NewLease returns a source. It reports every fault of m and cfg at once and connects to nothing yet.
func NewLease(conn *pgx.ConnConfig, m mapping.Mapping, cfg Config) (*Lease, error) {
	s := &Lease{}
	if err := s.init(conn, m, cfg); err != nil {
		return nil, err
	}
	if err := needsDone(m); err != nil {
		return nil, err
	}
	if m.Claim.Until == "" && m.Claim.Status == "" {
		return nil, fmt.Errorf("mapped: the mapping of table %q doesn't say how rows are claimed, which this strategy needs: "+
			"by a time until which they are, or by a status and the time since which they are", m.Table)
	}
	return s, nil
}

// Acquire waits only for another relay of the same name. Errors that waiting can't cure are marked by
// outbox.Permanent: a mapping that doesn't fit the table, a standby.
func (s *Lease) Acquire(ctx context.Context) (relay.Session, error) {
	return s.acquire(ctx, func(ctx context.Context) (_ relay.Session, err error) {
		var marking, reading *pgx.Conn
		defer func() {
			if err != nil {
				hangUp(marking)
				hangUp(reading)
			}
		}()
		t, pooled, err := s.open(ctx, &marking, &reading)
		if err != nil {
			return nil, err
		}
		session := &leaseSession{source: &s.source, table: t, claims: newClaims(t, s.owner, s.cfg.Lease), holds: newHolds()}
		session.marks = newStatements(t, false, false, session.claims.fence, &s.receipts, s.cfg.Logger)
		session.reader = newReader(t, reading, s.cfg.PageBytes, session.claims.take)
		session.reader.claims = true
		session.own = []uint32{dial.PID(marking), dial.PID(reading)}
		if pooled != nil {
			// The locks that tell whether a relay lives are a session's.
			s.cfg.Logger.Warn("a pooler in transaction mode stands before the server: what this relay had reserved before is not taken back, it waits until its lease ends",
				"relay", s.owner, "table", t.name)
		} else if err := session.takeBack(ctx, marking); err != nil {
			return nil, err
		}
		session.link = newLink(marking, s.cfg.Lease, session.renew)
		session.pace = pace{cfg: &s.cfg, broken: session.link.broken}
		return session, nil
	})
}

// leaseSession shares the table with others. Next runs in one goroutine, the rest in another.
type leaseSession struct {
	source *source
	link   *link // marks
	table  *table
	claims *claims
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

// claims is the SQL of reservations.
type claims struct {
	take    func(from string) string
	again   string // $1 ids, $2 tokens: claim rows that were set aside
	renew   string // $1 ids, $2 tokens
	release string // $1 ids, $2 tokens
	mine    string // release all that the owner has; empty: there is no column for the owner
	all     string // release all that anybody has; empty: can't be told from rows that are to wait
	fence   string // a row is still claimed by o.token
	waits   string // a row is not done
}

func newClaims(t *table, owner string, lease time.Duration) *claims {
	m := &t.mapping
	c := &claims{}
	duration := fmt.Sprintf("interval '%d microseconds'", lease.Microseconds())

	var set, free assignments
	waits := t.waiting
	var available, mark, kept string
	if until := m.Claim.Until; until != "" {
		mark = column(until)
		available = fmt.Sprintf("%s AND (%s IS NULL OR %s < (SELECT clock_timestamp()))", t.waiting, mark, mark)
		if t.info.Column(until).NotNull {
			available = fmt.Sprintf("%s AND %s < (SELECT clock_timestamp())", t.waiting, mark)
		}
		set.set(until, "now() + "+duration)
		free.set(until, "now()")
		kept = fmt.Sprintf("%s - now() < %s * 2 / 3", mark, duration)
	} else {
		mark = column(m.Claim.Since)
		processing := column(m.Done.Column) + " = " + schema.QuoteLiteral(m.Claim.Status)
		waits = fmt.Sprintf("(%s OR %s)", t.waiting, processing)
		// A time that is as far in the future was written before the clock was set back.
		available = fmt.Sprintf("(%s OR %s AND (%s IS NULL OR %s NOT BETWEEN (SELECT clock_timestamp()) - %s AND (SELECT clock_timestamp()) + %s))",
			t.waiting, processing, mark, mark, duration, duration)
		set.set(m.Done.Column, schema.QuoteLiteral(m.Claim.Status))
		set.set(m.Claim.Since, "now()")
		free.set(m.Done.Column, schema.QuoteLiteral(m.Done.Waiting))
		kept = fmt.Sprintf("(%s - now() < - %s / 3 OR %s > now())", mark, duration, mark)
		c.all = takeBackSQL(t, free, processing)
		c.fence = processing + " AND "
	}
	kind := t.info.Column(unqualified(mark)).Type
	// Neither this nor kept can use an index on the mark. All rows of a claim are equal in it, so finding one there
	// costs as much as all, and the planner can't know that.
	c.fence += fmt.Sprintf("%s IS NOT DISTINCT FROM (to_timestamp(0) + o.token * interval '1 microsecond')::%s", mark, kind)
	renewed := strings.Join(set, ", ")
	if m.Claim.Owner != "" {
		set.set(m.Claim.Owner, schema.QuoteLiteral(owner))
		free.set(m.Claim.Owner, "NULL")
		c.mine = takeBackSQL(t, free, column(m.Claim.Owner)+" = "+schema.QuoteLiteral(owner))
	}
	if m.Claim.Counts {
		set.set(m.Failure.Attempts, "least(coalesce("+column(m.Failure.Attempts)+", 0), 32766) + 1") // a smallint may count them
	}
	token := fmt.Sprintf("(extract(epoch FROM %s::timestamptz) * 1000000)::bigint", mark)
	c.take = func(from string) string { return t.reserveSQL(set, token, waits, available, from) }
	const rows = "unnest($1::text[], $2::bigint[]) o (id, token)"
	same := fmt.Sprintf("%s = o.id::%s", t.id, t.idType)
	// What waits for another attempt may have a time of its own until which nobody takes it.
	var still string
	if m.Claim.Until != "" {
		still = fmt.Sprintf("%s AND (%s)", t.waiting, strings.Join([]string{mark + " IS NULL", mark + " < now() + interval '100 milliseconds'", c.fence}, " OR "))
	} else {
		still = fmt.Sprintf("(%s OR %s)", t.waiting, c.fence)
	}
	// A row that can't be taken keeps back those behind it in the list.
	c.again = fmt.Sprintf(`WITH o AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY o (id, token, place)), l AS MATERIALIZED (
	SELECT %s AS o_id, o.place FROM o JOIN %s m ON %s AND %s FOR UPDATE OF m SKIP LOCKED
), h AS (SELECT min(o.place) AS place FROM o JOIN %s m ON %s AND %s WHERE %s NOT IN (SELECT l.o_id FROM l))
UPDATE %s m SET %s FROM l WHERE %s = l.o_id AND (l.place > (SELECT h.place FROM h)) IS NOT TRUE RETURNING %s, 0::bigint, %s, 0::bigint, NULL::bigint, NULL::bigint[]`,
		t.id, t.name, same, still, t.name, same, waits, t.id, t.name, strings.Join(set, ", "), t.id, t.columns, token)
	locked := t.id + " = l.o_id"
	c.renew = lockFirst(t, rows, same+" AND "+c.fence+" AND "+kept) + fmt.Sprintf("UPDATE %s m SET %s FROM l WHERE %s RETURNING %s::text, %s", t.name, renewed, locked, t.id, token)
	c.release = lockFirst(t, rows, same+" AND "+c.fence) + fmt.Sprintf("UPDATE %s m SET %s FROM l WHERE %s", t.name, strings.Join(free, ", "), locked)
	c.waits = waits
	return c
}

// takeBackSQL frees rows, but for those that somebody has locked: they wait until their reservation ends.
func takeBackSQL(t *table, free assignments, condition string) string {
	return fmt.Sprintf("WITH l AS MATERIALIZED (SELECT %s AS o_id FROM %s m WHERE %s FOR UPDATE SKIP LOCKED) UPDATE %s m SET %s FROM l WHERE %s = l.o_id",
		t.id, t.name, condition, t.name, strings.Join(free, ", "), t.id)
}

// takeBack gives up the reservations of a relay that is no more.
func (s *leaseSession) takeBack(ctx context.Context, conn *pgx.Conn) error {
	if err := s.source.awaitLock(ctx, conn, s.table.nameLock(s.source.owner), "another relay of this name lives"); err != nil {
		return err
	}
	alone, err := s.alone(ctx, conn)
	if err != nil {
		return err
	}
	sql := s.claims.mine
	if sql == "" && alone {
		sql = s.claims.all
	}
	if sql != "" {
		tag, err := conn.Exec(ctx, sql)
		if err != nil {
			return fmt.Errorf("take reservations back: %w", explain(err))
		}
		if n := tag.RowsAffected(); n > 0 {
			s.source.cfg.Logger.Info("reservations taken back", "relay", s.source.owner, "table", s.table.name, "messages", n)
		}
	}
	if alone {
		_, err = conn.Exec(ctx, "SELECT pg_advisory_lock_shared("+s.table.presence()+"), pg_advisory_unlock("+s.table.presence()+")")
	} else {
		err = s.source.awaitPresence(ctx, conn, s.table.presence())
	}
	if err != nil {
		return fmt.Errorf("take the lock of presence: %w", err)
	}
	return nil
}

// alone reports whether no other relay reads the table with this strategy; none begins to, until the lock
// is let go of.
func (s *leaseSession) alone(ctx context.Context, conn *pgx.Conn) (alone bool, err error) {
	err = conn.QueryRow(ctx, "SELECT pg_try_advisory_lock("+s.table.presence()+")").Scan(&alone)
	if err != nil {
		return false, fmt.Errorf("take the lock of presence: %w", err)
	}
	return alone, nil
}

// awaitPresence takes the lock that every relay of the table shares.
func (s *source) awaitPresence(ctx context.Context, conn *pgx.Conn, lock string) error {
	for {
		var got bool
		if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock_shared("+lock+")").Scan(&got); err != nil || got {
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// presence is the advisory lock that tells a relay whether there are others.
func (t *table) presence() string {
	return fmt.Sprintf("%d::bigint", int64(hash64("pgoutbox lease\x00"+t.info.Schema+"\x00"+t.info.Name)))
}

func (s *leaseSession) Next(ctx context.Context, limit int) (relay.Batch, error) {
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
		// Nobody would know of what a statement has reserved that was interrupted.
		polling, cancel := s.source.lasting(ctx)
		ds, rows, err := s.reader.poll(polling, size, s.own, s.known, "")
		cancel()
		if err != nil {
			return relay.Batch{}, err
		}
		s.pace.polled(len(ds) > 0 || s.reader.news, len(ds) == size)
		s.ledger.add(ds, rows, s.table.numbered())
		s.rest = ds
	}
	return slice(&s.rest, limit), nil
}

// known lists the rows behind from that are in flight, wait for another attempt, or are to be marked.
func (s *leaseSession) known(from int64) []string {
	return s.later.known(s.holds.above(from, s.ledger.above(from, nil)))
}

// storeLater marks rows that were locked when they should have been.
func (s *leaseSession) storeLater(ctx context.Context) error {
	if len(s.later.all()) == 0 {
		return nil
	}
	ctx, cancel := s.source.lasting(ctx)
	defer cancel()
	return s.link.do(func(conn *pgx.Conn) error { return s.store(ctx, conn, &outcomes{}) })
}

func (s *leaseSession) store(ctx context.Context, conn *pgx.Conn, o *outcomes) error {
	gone, err := s.marks.store(ctx, conn, o, &s.later)
	if gone > 0 {
		s.source.cfg.Logger.Warn("messages were marked or taken over by somebody else", "relay", s.source.owner, "table", s.table.name, "messages", gone)
	}
	return err
}

// renew prolongs what is reserved and in flight, if it has come to a third of its time.
func (s *leaseSession) renew(ctx context.Context, conn *pgx.Conn) error {
	marks := append(tokens(append(s.ledger.all(), s.holds.claimed()...)), s.later.all()...)
	if err := seen(ctx, conn, s.table.name); err != nil || len(marks) == 0 {
		return err
	}
	c := newColumns(marks)
	rows, err := conn.Query(ctx, s.claims.renew, c.ids, c.tokens)
	if err != nil {
		return fmt.Errorf("renew reservations: %w", explain(err))
	}
	renewed := make(map[string]string)
	var id string
	var token int64
	_, err = pgx.ForEachRow(rows, []any{&id, &token}, func() error {
		renewed[id] = fmt.Sprint(token)
		return nil
	})
	if err != nil {
		return fmt.Errorf("renew reservations: %w", explain(err))
	}
	s.ledger.renew(renewed)
	s.holds.claim("", renewed)
	s.later.renew(renewed)
	return nil
}

func tokens(entries []entry) []mark {
	marks := make([]mark, len(entries))
	for i, e := range entries {
		marks[i] = mark{id: e.id, token: e.token}
	}
	return marks
}

func (s *leaseSession) Settle(ctx context.Context, settlement relay.Settlement) error {
	return s.link.do(func(conn *pgx.Conn) error {
		// Inside, or the tokens could be renewed meanwhile.
		x := split(settlement, s.ledger.through(settlement.Through))
		var o outcomes
		x.of(&o, x.entries, true)
		x.held(&o, s.holds)
		x.behind(&o, s.holds)
		if err := s.store(ctx, conn, &o); err != nil {
			return err
		}
		x.remember(s.holds)
		s.ledger.settle(len(x.entries))
		return nil
	})
}

// behind has rows wait for as long as the head of their lane, so that nobody takes them before it; and
// gives up what was claimed together with a head that failed again.
func (x *settled) behind(o *outcomes, h *holds) {
	waits := make(map[string]*mark) // by lane
	ids := make(map[string]*mark)
	for i := range o.waiting {
		ids[o.waiting[i].id] = &o.waiting[i]
	}
	for i := range x.Hold {
		lane := x.Hold[i].Delivery.Lane()
		head := waits[lane]
		if head == nil {
			head = &mark{}
			if first := h.first(lane, 1); len(first) > 0 {
				wait := max(time.Until(first[0].due), 0)
				head.wait, head.blocked = &wait, first[0].blocked
			} else if m := ids[entryID(x.entries, x.Hold[i].Delivery.Ref)]; m != nil {
				head.wait, head.blocked = m.wait, m.blocked
			}
			waits[lane] = head
		}
		if m := ids[entryID(x.entries, x.Hold[i].Delivery.Ref)]; m != nil && m.wait == nil && !m.blocked {
			m.wait, m.blocked = head.wait, head.blocked
		}
	}
	for i := range x.HeldRetry {
		retry := &x.HeldRetry[i]
		head := holdMark(entry{}, retry)
		for _, other := range h.first(retry.Delivery.Lane(), h.size()) {
			if other.token != "" && other.ref != retry.Delivery.Ref {
				o.waiting = append(o.waiting, mark{id: other.id, token: other.token, attempts: other.attempts, wait: head.wait, blocked: head.blocked})
			}
		}
	}
}

func entryID(entries []entry, ref uint64) string {
	if len(entries) == 0 || ref < entries[0].ref || ref-entries[0].ref >= uint64(len(entries)) {
		return ""
	}
	return entries[ref-entries[0].ref].id // ordinals follow one another
}

func (s *leaseSession) Lanes(ctx context.Context, limit int) ([]relay.HeldLane, error) {
	if blocked := s.holds.blocked(); len(blocked) > 0 {
		err := s.link.do(func(conn *pgx.Conn) error {
			refs, err := s.table.released(ctx, conn, blocked)
			for _, ref := range refs {
				s.holds.unblock(ref)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return s.holds.heads(limit), s.link.failure()
}

// Held claims the first rows of a lane that are due, up to one that another relay has taken or somebody has locked.
func (s *leaseSession) Held(ctx context.Context, lane string, limit int) (held []relay.Delivery, err error) {
	if err := s.storeLater(ctx); err != nil {
		return nil, err
	}
	now := time.Now()
	for {
		list := s.holds.first(lane, limit)
		if len(list) == 0 {
			return nil, s.link.failure()
		}
		if list[0].blocked || list[0].due.After(now) {
			return []relay.Delivery{{RetryAt: list[0].due, Blocked: list[0].blocked}}, nil
		}
		n := 1
		for n < len(list) && !list[n].blocked && !list[n].due.After(now) {
			n++
		}
		list = list[:n]
		err := s.link.do(func(conn *pgx.Conn) error {
			var missing map[uint64]bool
			held, missing, err = s.claimAgain(ctx, conn, list)
			if err == nil {
				s.claimed(lane, held, list)
				s.holds.gone(lane, missing)
			}
			return err
		})
		if err != nil || len(held) > 0 {
			return held, err
		}
		if left := s.holds.first(lane, 1); len(left) > 0 && left[0].ref == list[0].ref {
			return []relay.Delivery{{RetryAt: now.Add(5 * soon)}}, nil
		}
	}
}

func (s *leaseSession) claimAgain(ctx context.Context, conn *pgx.Conn, list []hold) ([]relay.Delivery, map[uint64]bool, error) {
	ours := make(map[string]string) // reservations that could not be taken off rows when they were to wait
	for _, m := range s.later.all() {
		ours[m.id] = m.token
	}
	marks := make([]entry, len(list))
	for i := range list {
		marks[i] = list[i].entry
		marks[i].token = cmp.Or(marks[i].token, ours[marks[i].id])
	}
	c := newColumns(tokens(marks))
	args := [][]byte{textArray(c.ids), tokenArray(marks)}
	ds, rows, err := s.table.collect(conn.PgConn().ExecParams(ctx, s.claims.again, args, nil, nil, binaryFormat), new(sight).read)
	if err != nil {
		return nil, nil, fmt.Errorf("claim rows again: %w", explain(err))
	}
	for i := range rows {
		for j := range list {
			if list[j].id == rows[i].id {
				list[j].token = rows[i].token
			}
		}
	}
	var taken outcomes
	for i := range rows {
		taken.waiting = append(taken.waiting, mark{id: rows[i].id})
	}
	s.later.set(&taken, outcomes{})
	waits, err := s.table.untaken(ctx, conn, list, rows, s.claims.waits)
	if err != nil {
		return nil, nil, err
	}
	held, missing := restore(list, ds, rows, waits)
	return held, missing, nil
}

// claimed notes the tokens that list has now.
func (s *leaseSession) claimed(lane string, held []relay.Delivery, list []hold) {
	renewed := make(map[string]string, len(held))
	for i := range list {
		renewed[list[i].id] = list[i].token
	}
	s.holds.claim(lane, renewed)
}

func tokenArray(entries []entry) []byte {
	b := []byte{'{'}
	for i, e := range entries {
		if i > 0 {
			b = append(b, ',')
		}
		if e.token == "" {
			b = append(b, "NULL"...)
		} else {
			b = append(b, e.token...)
		}
	}
	return append(b, '}')
}

func (s *leaseSession) Expires() time.Time { return s.link.expires() }

// Close gives up what is reserved and not settled.
func (s *leaseSession) Close(ctx context.Context) error {
	hangUp(s.reader.conn)
	err := s.link.close(func(conn *pgx.Conn) error {
		if err := s.store(ctx, conn, &outcomes{}); err != nil {
			return err
		}
		entries := append(s.ledger.all(), s.holds.claimed()...)
		if len(entries) == 0 {
			return nil
		}
		c := newColumns(tokens(entries))
		if _, err := conn.Exec(ctx, s.claims.release, c.ids, c.tokens); err != nil {
			return fmt.Errorf("give reservations up: %w", err)
		}
		return nil
	})
	s.source.active.Store(false)
	return err
}
