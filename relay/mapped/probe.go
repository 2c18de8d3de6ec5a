package mapped

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/wal"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/relay/mapped/internal/link"
	"github.com/pgoutbox/outbox/relay/mapped/internal/marking"
	"github.com/pgoutbox/outbox/relay/mapped/internal/pending"
	"github.com/pgoutbox/outbox/relay/mapped/internal/reading"
	"github.com/pgoutbox/outbox/schema"
)

// Probe does what a session does around a message, by the statements of sessions: it polls, marks a row that waits with
// each outcome, and buries it. Then it takes everything back. Triggers, constraints and rights that only show when a
// row is written show here. Other relays may run: what is locked is free again after a moment. At most, a sequence has
// a gap afterwards, from which a table of dead letters or of offsets draws its own numbers. The log is not read; what a
// stream of it needs is looked up, and a replication connection is opened.
//
// The result says what could not be tried, "" for nothing. If a right is missing, the error has the statements that
// grant all rights that the strategy needs.
func (s *Source) Probe(ctx context.Context) (untried string, err error) {
	p := &probe{session: session{source: s, holds: pending.NewHolds(nil)}}
	defer func() { dial.HangUp(p.conn) }()
	untried, err = p.run(ctx)
	if sqlstate.Of(err) == "42501" && !errors.Is(err, schema.ErrHidden) && !errors.Is(err, wal.ErrMayNotStream) {
		err = fmt.Errorf("%w: as the owner of the tables run: %s", err, s.mapping.GrantsSQL(s.strategy, s.conn.User))
	}
	return untried, err
}

type probe struct {
	session
	untried string
}

// probeLocks is how long a statement waits for a lock. It has to be short: what a probe has locked meanwhile, other
// relays and writers wait for.
const probeLocks = "2s"

func (p *probe) run(ctx context.Context) (untried string, err error) {
	src := p.source
	if p.table, p.pooled, err = src.open(ctx, &p.conn); err != nil {
		return "", err
	}
	p.reading = p.conn
	if p.pooled != nil && (src.strategy == mapping.Advisory || src.strategy == mapping.Replication) {
		return "", p.pooled
	}
	p.locks()
	switch src.strategy {
	case mapping.Replication:
		err = p.log(ctx)
	case mapping.XMin, mapping.Serial:
		err = p.offsets(ctx)
	default:
		err = p.rows(ctx)
	}
	if err == nil && src.cfg.Notify != "" {
		err = p.listen(ctx)
	}
	return p.untried, err
}

// inTransaction runs f in a transaction, and takes back what it did.
func (p *probe) inTransaction(ctx context.Context, f func() error) error {
	if err := p.exec(ctx, "BEGIN"); err != nil {
		return err
	}
	if err := p.exec(ctx, "SET LOCAL lock_timeout = '"+probeLocks+"'"); err != nil {
		return err
	}
	return errors.Join(f(), p.exec(context.WithoutCancel(ctx), "ROLLBACK"))
}

func (p *probe) exec(ctx context.Context, sql string, args ...any) error {
	_, err := p.conn.Exec(ctx, sql, args...)
	return existing.Explain(err)
}

// inSavepoint runs f under a savepoint and takes back what it did, so that the next outcome finds the row as it was.
func (p *probe) inSavepoint(ctx context.Context, f func() error) error {
	if err := p.exec(ctx, "SAVEPOINT outbox_probe"); err != nil {
		return err
	}
	err := f()
	if err == nil {
		err = p.exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE") // otherwise they would be checked when a relay commits
	}
	return errors.Join(err, p.exec(ctx, "ROLLBACK TO SAVEPOINT outbox_probe"))
}

// rows tries a strategy that marks rows.
func (p *probe) rows(ctx context.Context) error {
	claims := p.prepare()
	return p.inTransaction(ctx, func() error {
		var rows []existing.Row
		// A text that has no UTF-8 form is no fault of the mapping.
		err := p.table.Attempt(ctx, p.conn, func() (err error) {
			_, rows, err = p.reader.PollFor(ctx, 1, p.own, p.leaveNone, "", false)
			return err
		})
		if schema.IsDataError(err) {
			_, rows, err = p.reader.PollFor(ctx, 1, p.own, p.leaveNone, "", true)
		}
		if err != nil {
			return err
		}
		marks, err := p.sample(ctx, rows)
		if err != nil {
			return err
		}
		if err := p.outcomes(ctx, marks); err != nil || claims == nil {
			return err
		}
		return p.reservations(ctx, claims, marks)
	})
}

func (p *probe) leaveNone(int64) []string { return nil }

// sample is the row that is marked, none if none waits. A row that the poll has not locked may be another relay's.
func (p *probe) sample(ctx context.Context, rows []existing.Row) ([]marking.Mark, error) {
	if len(rows) > 0 && !p.reader.Claims {
		var locked bool
		sql := fmt.Sprintf("SELECT true FROM %s m WHERE %s = $1::text::%s AND %s FOR UPDATE SKIP LOCKED",
			p.table.Name, p.table.ID, p.table.IDType, p.table.Waiting)
		if err := p.conn.QueryRow(ctx, sql, rows[0].ID).Scan(&locked); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return nil, fmt.Errorf("lock a row: %w", existing.Explain(err))
		}
		if !locked {
			rows = nil
		}
	}
	if len(rows) == 0 {
		return nil, nil
	}
	wait := time.Minute
	return []marking.Mark{{ID: rows[0].ID, Token: rows[0].Token, Identity: rows[0].Identity, Attempts: 1, Wait: &wait,
		Reason: relay.ReasonRefused, Err: errors.New("a probe tries how a failure is recorded, and takes it back")}}, nil
}

// outcomes marks a row as each settlement can, or no row, which shows missing rights at least.
func (p *probe) outcomes(ctx context.Context, marks []marking.Mark) error {
	s := p.statements
	blocked := append([]marking.Mark(nil), marks...)
	for i := range blocked {
		blocked[i].Wait, blocked[i].Blocked = nil, true
	}
	waits, bury := p.table.Mapping.Unsettled(), "make a dead letter of a row"
	if p.table.Dead != nil {
		bury += " in " + p.table.Dead.TableName().String()
	}
	for _, o := range []struct {
		what, sql string
		args      []any
		still     string // the condition that the row has not got the outcome
	}{
		{"mark a row as delivered", s.Done, s.DoneArgs(marks), waits},
		{"mark a row for another attempt", s.Waiting, s.WaitingArgs(p.conn, marks), "NOT (" + waits + ")"},
		{"mark a row as blocked", s.Waiting, s.WaitingArgs(p.conn, blocked), "NOT (" + waits + ")"},
		{bury, s.Dead, s.DeadArgs(p.conn, marks), waits},
	} {
		if o.sql == "" {
			continue // the mapping has no column for it
		}
		if o.sql == s.Dead && p.table.Dead != nil {
			if err := p.deadTable(ctx, len(marks) == 0); err != nil {
				return fmt.Errorf("%s: %w", o.what, err)
			}
		}
		err := p.inSavepoint(ctx, func() error {
			var there, ids []string
			err := p.conn.QueryRow(ctx, o.sql, o.args...).Scan(&there, &ids)
			if err != nil || len(marks) == 0 {
				return existing.Explain(err)
			}
			var unmarked bool
			if s.Done != "" {
				err = p.conn.QueryRow(ctx, fmt.Sprintf("SELECT EXISTS (SELECT FROM %s m WHERE %s = $1::text::%s AND %s)",
					p.table.Name, p.table.ID, p.table.IDType, o.still), marks[0].ID).Scan(&unmarked)
			}
			if err == nil && (len(ids) == 0 || unmarked) {
				err = outbox.Permanent(fmt.Errorf("table %s keeps the row as it was, without an error: look at its triggers and rules",
					p.table.Name))
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("%s%s: %w", o.what, rowText(marks), err)
		}
	}
	if len(marks) == 0 {
		return p.noteTriggers(ctx)
	}
	return nil
}

// rowText names the row of an error: another one may be accepted.
func rowText(marks []marking.Mark) string {
	if len(marks) == 0 {
		return ""
	}
	return fmt.Sprintf(" (id %.100q)", marks[0].ID)
}

// reservations tries what a lease does between the claim and the mark.
func (p *probe) reservations(ctx context.Context, c *claims, marks []marking.Mark) error {
	columns := marking.NewColumns(marks)
	for _, o := range []struct{ what, sql string }{
		{"renew reservations", c.renew}, {"claim rows again", c.again}, {"give reservations up", c.release},
	} {
		args := []any{columns.IDs, columns.Tokens}
		if o.sql == c.again {
			args = append(args, columns.Blocked, columns.Identity)
		}
		err := p.inSavepoint(ctx, func() error { return p.exec(ctx, o.sql, args...) })
		if err != nil {
			return fmt.Errorf("%s: %w", o.what, err)
		}
	}
	for _, sql := range []string{c.mine, c.all} { // they may concern many rows
		if sql == "" {
			continue
		}
		if err := p.exec(ctx, "EXPLAIN "+sql); err != nil {
			return fmt.Errorf("take reservations back: %w", err)
		}
	}
	return nil
}

// probeParts is how many topics and partitions are read.
const probeParts = 8

// offsets tries a strategy that moves offsets: first their lease, which other relays need soon, and then the poll.
func (p *probe) offsets(ctx context.Context) error {
	o, err := p.prepareOffsets(ctx)
	if err != nil {
		return err
	}
	s := &offsetSession{session: &p.session, offsets: o, parts: make(map[partName]*part), horizon: reading.NewHorizon(p.table),
		page: reading.PageSize{PageBytes: p.source.cfg.PageBytes}}
	p.strategy = s
	p.link = link.New(p.conn, p.source.cfg.Lease, link.Ping)
	p.pace = pace{cfg: &p.source.cfg, broken: p.link.Ended()}
	names, err := s.newParts(ctx)
	if err != nil {
		return err
	}
	names = names[:min(len(names), probeParts)]
	if err := p.inTransaction(ctx, func() error { return p.lease(ctx, s, names) }); err != nil {
		return err
	}
	return p.inTransaction(ctx, func() error {
		var rows []existing.Row
		if len(s.parts) > 0 {
			if _, err := s.read(ctx, 1); err != nil {
				return err
			}
			for _, e := range s.ledger.All() {
				rows = append(rows, e.Row)
			}
		}
		p.reader = &reading.Reader{Claims: true} // a row that is copied needs no lock
		marks, err := p.sample(ctx, rows)
		if err != nil {
			return err
		}
		return p.outcomes(ctx, marks)
	})
}

// lease takes the offsets, also from another relay, moves them to where they are, and gives them back.
func (p *probe) lease(ctx context.Context, s *offsetSession, names []partName) error {
	o := s.offsets
	fail := func(what string, err error) error {
		if err != nil {
			err = fmt.Errorf("%s: %w", what, existing.Explain(err))
		}
		return err
	}
	if _, err := o.free(ctx, p.conn, ""); err != nil {
		return fail("look at the offsets", err)
	}
	token, err := o.own(ctx, p.conn, p.source)
	if err == nil && token == 0 { // no relay has read the table yet
		if err = p.exec(ctx, o.begin); err == nil {
			token, err = o.own(ctx, p.conn, p.source)
		}
	}
	if err != nil {
		return fail("take the offsets", err)
	}
	if s.token = token; len(names) == 0 { // what is then inserted later needs the same rights
		err = p.exec(ctx, "EXPLAIN "+o.begin)
		if err == nil {
			info, _ := mapping.ParseTableName(p.table.Mapping.Offsets.Table) // it was read
			err = p.mayDraw(ctx, info.String(), []string{})
		}
		if err != nil {
			return fail("insert offsets", err)
		}
	}
	if err := s.load(ctx, names); err != nil {
		return err
	}
	for _, part := range s.parts {
		part.moved = true
	}
	if err := s.store(ctx, p.conn, &marking.Outcomes{}); err != nil {
		return err
	}
	if err := s.renew(ctx, p.conn); err != nil {
		return err
	}
	if err := p.exec(ctx, o.check, s.token); err != nil {
		return fail("keep dead letters", err)
	}
	return fail("give the offsets back", p.exec(ctx, o.release, s.token))
}

// log looks at what a stream of the log needs, and tries the table of dead letters without a row.
func (p *probe) log(ctx context.Context) error {
	cfg := &p.source.cfg
	err := wal.ProbeTail(ctx, p.source.conn, wal.TailConfig{Slot: cfg.Slot, Publication: cfg.Publication, Logger: cfg.Logger,
		Table: p.table.Info.TableName(), OID: p.table.Info.OID})
	if p.table.Dead == nil {
		return err
	}
	sql, args := p.table.BurySQL(p.conn, p.table.NullRow(), &relay.Dead{Delivery: &relay.Delivery{}, Reason: relay.ReasonRefused})
	buryErr := p.exec(ctx, "EXPLAIN "+sql, args...)
	for _, c := range p.table.Dead.Columns { // the texts of the log are cast, which fails with the first row
		was := p.table.Info.Column(c.Name)
		if was != nil && c.Kind != was.Kind && c.Kind != mapping.KindText && c.Kind != mapping.KindBytes {
			buryErr = errors.Join(buryErr, outbox.Permanent(fmt.Errorf("%w: column %q of the table of dead letters %s is of type %s, and "+
				"of table %s of type %s", mapping.ErrMapping, c.Name, p.table.Dead.TableName(), c.Type, p.table.Name, was.Type)))
		}
	}
	if buryErr == nil {
		buryErr = p.deadTable(ctx, true)
	}
	if buryErr != nil {
		buryErr = fmt.Errorf("keep a dead letter: %w", buryErr)
	}
	if p.untried == "" {
		p.untried = "the table of dead letters was looked at, and none was written"
	}
	return errors.Join(err, buryErr)
}

// deadTable refuses a table of dead letters in which no row can be inserted. If none is inserted, it also looks at the
// numbers that the table would draw.
func (p *probe) deadTable(ctx context.Context, untried bool) error {
	t, m := p.table, &p.table.Mapping
	filled := []string{"reason", "error", "attempts", "dead_at", m.Failure.Error, m.Failure.Attempts}
	for _, c := range t.Info.Columns {
		filled = append(filled, c.Name)
	}
	var empty string
	err := p.conn.QueryRow(ctx, `SELECT coalesce(string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum), '') FROM pg_catalog.pg_attribute a
		WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped AND a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
		AND a.attname <> ALL($2::text[])`, t.Dead.OID, filled).Scan(&empty)
	switch {
	case err != nil:
		return fmt.Errorf("look at the table of dead letters: %w", existing.Explain(err))
	case empty != "":
		return outbox.Permanent(fmt.Errorf("%w: the table of dead letters %s has columns that are NOT NULL, have no default, and that "+
			"table %s doesn't have: %s; run ALTER TABLE … ALTER … DROP NOT NULL", mapping.ErrMapping, t.Dead.TableName(), t.Name, empty))
	case !untried:
		return nil
	}
	return p.mayDraw(ctx, t.Dead.TableName().String(), filled)
}

// mayDraw returns an error if the defaults of a table's columns, other than those that are filled, use a sequence that
// this role may not use.
func (p *probe) mayDraw(ctx context.Context, table string, filled []string) error {
	var sequences string
	err := p.conn.QueryRow(ctx, `SELECT coalesce(string_agg(DISTINCT s.oid::regclass::text, ', '), '') FROM pg_catalog.pg_attribute a
		JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		JOIN pg_catalog.pg_depend p ON p.classid = 'pg_catalog.pg_attrdef'::regclass AND p.objid = d.oid
			AND p.refclassid = 'pg_catalog.pg_class'::regclass
		JOIN pg_catalog.pg_class s ON s.oid = p.refobjid
		WHERE a.attrelid = $1::text::regclass AND a.attname <> ALL($2::text[])
			AND CASE WHEN s.relkind = 'S' THEN NOT has_sequence_privilege(s.oid, 'USAGE, UPDATE') END`,
		table, filled).Scan(&sequences)
	if err != nil {
		return fmt.Errorf("look at the sequences of %s: %w", table, existing.Explain(err))
	}
	if sequences != "" {
		return outbox.Permanent(fmt.Errorf("this role may not draw numbers for table %s: as its owner run: "+
			"GRANT USAGE ON SEQUENCE %s TO %s", table, sequences, pgx.Identifier{p.source.conn.User}.Sanitize()))
	}
	return nil
}

// noteTriggers notes what can only be tried with a row.
func (p *probe) noteTriggers(ctx context.Context) error {
	p.untried = "no row waits, so none was marked"
	tables := []uint32{p.table.Info.OID}
	if p.table.Dead != nil {
		tables = append(tables, p.table.Dead.OID)
	}
	rows, err := p.conn.Query(ctx, `SELECT DISTINCT quote_ident(g.tgname) FROM pg_catalog.pg_trigger g
		WHERE g.tgrelid = ANY($1::oid[]) AND NOT g.tgisinternal AND g.tgenabled <> 'D' ORDER BY 1`, tables)
	if err != nil {
		return fmt.Errorf("look at the triggers: %w", existing.Explain(err))
	}
	triggers, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look at the triggers: %w", existing.Explain(err))
	}
	if len(triggers) > 0 {
		p.untried += ", and what " + strings.Join(triggers, ", ") + " does shows with the first row"
	}
	return nil
}

// listen tries to listen where a session does.
func (p *probe) listen(ctx context.Context) error {
	if p.pooled != nil {
		p.untried = strings.TrimPrefix(p.untried+"; no notification comes through the pooler, so rows wait for polls", "; ")
		return nil
	}
	return p.inTransaction(ctx, func() error { return p.exec(ctx, "LISTEN "+schema.QuoteIdentifier(p.source.cfg.Notify)) })
}

// Probe deletes one row as Once does, with an archive if there is one, and takes it back.
func (p *Purge) Probe(ctx context.Context) error {
	probe := &probe{session: session{source: &p.source}}
	defer func() { dial.HangUp(probe.conn) }()
	t, _, err := p.source.open(ctx, &probe.conn)
	if err != nil {
		return err
	}
	sql, err := p.sql(ctx, probe.conn, t)
	if err == nil {
		err = probe.inTransaction(ctx, func() error {
			if _, err = p.delete(ctx, probe.conn, sql, 1); err != nil {
				return fmt.Errorf("delete delivered rows: %w", existing.Explain(err))
			}
			return probe.exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE")
		})
	}
	if sqlstate.Of(err) == "42501" && !errors.Is(err, schema.ErrHidden) {
		archive := ""
		if p.cfg.Archive != "" {
			archive = "; GRANT INSERT ON " + p.cfg.Archive + " TO " + pgx.Identifier{p.source.conn.User}.Sanitize()
		}
		err = fmt.Errorf("%w: as the owner of the tables run: GRANT SELECT, UPDATE, DELETE ON %s TO %s%s", err, t.Name,
			pgx.Identifier{p.source.conn.User}.Sanitize(), archive)
	}
	return err
}
