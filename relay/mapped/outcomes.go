package mapped

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// outcomes is what a settlement changes in the table.
type outcomes struct {
	delivered []mark
	waiting   []mark // not delivered; another attempt follows
	dead      []mark
}

// mark is one row and its outcome.
type mark struct {
	id        string
	token     string
	identity  int64     // of the row that was read
	message   outbox.ID // message and partition are set only for a delivered row
	partition *string   // the partition that the broker has reported
	attempts  int
	wait      *time.Duration // until the next attempt; nil: no time of its own, or blocked
	blocked   bool
	reason    relay.Reason
	err       error
	again     time.Time // of a mark that was refused or undone: the earliest time of the next try
	undone    bool      // the row was there, and has not got the mark
}

func (o *outcomes) empty() bool { return len(o.delivered)+len(o.waiting)+len(o.dead) == 0 }

func (o *outcomes) all() []mark { return slices.Concat(o.delivered, o.waiting, o.dead) }

func (o *outcomes) each(f func(*mark)) {
	for _, list := range [][]mark{o.delivered, o.waiting, o.dead} {
		for i := range list {
			f(&list[i])
		}
	}
}

// among returns the marks whose ids are in the list, or, if listed is false, the other marks.
func (o *outcomes) among(ids []string, listed bool) outcomes {
	return outcomes{only(o.delivered, ids, listed), only(o.waiting, ids, listed), only(o.dead, ids, listed)}
}

func (o *outcomes) and(other outcomes) outcomes {
	return outcomes{slices.Concat(o.delivered, other.delivered), slices.Concat(o.waiting, other.waiting), slices.Concat(o.dead, other.dead)}
}

// singles splits o into outcomes of one mark each.
func (o *outcomes) singles() (singles []outcomes) {
	for _, m := range o.delivered {
		singles = append(singles, outcomes{delivered: []mark{m}})
	}
	for _, m := range o.waiting {
		singles = append(singles, outcomes{waiting: []mark{m}})
	}
	for _, m := range o.dead {
		singles = append(singles, outcomes{dead: []mark{m}})
	}
	return singles
}

// settled is a settlement split up: the rows of the settled prefix by their outcome, and the holds.
type settled struct {
	relay.Settlement
	entries []entry
	hold    map[uint64]*relay.Hold
	dead    map[uint64]*relay.Dead
}

func split(s relay.Settlement, entries []entry) *settled {
	x := &settled{Settlement: s, entries: entries}
	if len(s.Hold)+len(s.Dead) > 0 {
		x.hold, x.dead = make(map[uint64]*relay.Hold), make(map[uint64]*relay.Dead)
		for i := range s.Hold {
			x.hold[s.Hold[i].Delivery.Ref] = &s.Hold[i]
		}
		for i := range s.Dead {
			x.dead[s.Dead[i].Delivery.Ref] = &s.Dead[i]
		}
	}
	return x
}

// of sorts entries of the prefix into o. Held rows are no longer in flight. They need a mark only if they failed, or,
// with always, to remove their reservation.
func (x *settled) of(o *outcomes, entries []entry, always bool) {
	for _, e := range entries {
		if h := x.hold[e.ref]; h != nil {
			if always || h.Err != nil || !h.RetryAt.IsZero() || h.Blocked && !h.Delivery.Blocked {
				o.waiting = append(o.waiting, holdMark(e, h))
			}
			continue
		}
		if d := x.dead[e.ref]; d != nil {
			o.dead = append(o.dead, deadMark(e, d))
			continue
		}
		o.delivered = append(o.delivered, mark{id: e.id, token: e.token, identity: e.identity, message: e.message})
	}
}

// outcomes sorts a whole settlement, see of.
func (x *settled) outcomes(h *holds, always bool) *outcomes {
	var o outcomes
	x.of(&o, x.entries, always)
	x.held(h, func(string) *outcomes { return &o })
	return &o
}

// held takes the outcomes of rows that had been set aside. It adds each to the outcomes that the function of
// returns for the row's lane; nil leaves the row out.
func (x *settled) held(h *holds, of func(lane string) *outcomes) {
	find := func(d *relay.Delivery) (hold, *outcomes) {
		if was, ok := h.find(d); ok {
			return was, of(d.Lane())
		}
		return hold{}, nil
	}
	for _, d := range x.HeldDelivered {
		if was, o := find(d); o != nil {
			o.delivered = append(o.delivered, mark{id: was.id, token: was.token, identity: was.identity, message: was.message})
		}
	}
	for i := range x.HeldRetry {
		if was, o := find(x.HeldRetry[i].Delivery); o != nil {
			o.waiting = append(o.waiting, holdMark(was.entry, &x.HeldRetry[i]))
		}
	}
	for i := range x.HeldDead {
		if was, o := find(x.HeldDead[i].Delivery); o != nil {
			o.dead = append(o.dead, deadMark(was.entry, &x.HeldDead[i]))
		}
	}
}

func holdMark(e entry, h *relay.Hold) mark {
	m := mark{id: e.id, token: e.token, identity: e.identity, attempts: h.Delivery.Attempts, blocked: h.Blocked, err: h.Err}
	if !h.RetryAt.IsZero() {
		wait := max(time.Until(h.RetryAt), 0)
		if wait < never || h.Err != nil {
			m.wait = &wait
		}
	}
	return m
}

// never is a wait that only a time without an end leads to, in the column for when a message may be delivered. It isn't
// written as the time of the next attempt: somebody may give the row another one.
const never = 200 * 365 * 24 * time.Hour

func deadMark(e entry, d *relay.Dead) mark {
	return mark{id: e.id, token: e.token, identity: e.identity, attempts: d.Delivery.Attempts, reason: d.Reason, err: d.Err}
}

// remember records in holds what a settlement has stored.
func (x *settled) remember(h *holds) {
	for _, e := range x.entries {
		if hold := x.hold[e.ref]; hold != nil {
			e.token = "" // no relay has it while it waits
			h.add(e, hold)
		}
	}
	h.tried(&x.Settlement)
}

// statements are the SQL that marks rows of a table. Each statement takes arrays, so the number of statements doesn't
// grow with the number of rows.
type statements struct {
	table    *table
	receipts *receipts // nil: the mapping has no column for them
	logger   *slog.Logger

	done    string // $1 ids, $2 tokens, with receipts $3 partitions
	waiting string // $1 ids, $2 tokens, $3 attempts, $4 microseconds, $5 blocked, $6 errors; empty: nothing to write
	dead    string // $1 ids, $2 tokens, $3 attempts, $4 reasons, $5 errors; empty: the table has no place for dead letters

	fence  string // condition that a row is still claimed by o.token; empty: the strategy has no claims
	locked bool   // the transaction has already locked the rows
	still  string // $1 ids, $2 tokens: those that still have to be marked
	undone string // $1 ids: those of rows that wait
}

// errNoPlace is the error of a dead letter whose table has no place for it.
var errNoPlace = errors.New("a message can't be delivered, and its table has no place for dead letters: name a " +
	"dead-letter table or a status for failed rows in the mapping, or set the policy for such messages to block or " +
	"stop")

// newStatements builds the statements of a table. copied means that rows are never changed, so a dead letter is a copy.
// fence is a condition on the token o.token; it is empty if there are no claims. r has the partitions of delivered
// messages, if the table has a column for them.
//
// Rows that the transaction hasn't locked are locked first, except those that another transaction has locked. If a
// relay waited for a row while it has locked others, it would be one half of a deadlock, and the server might end the
// other half, a writer's transaction.
func newStatements(t *table, copied, locked bool, fence string, r *receipts, logger *slog.Logger) *statements {
	s := &statements{table: t, fence: fence, locked: locked, logger: logger}
	if t.mapping.Done.Partition != "" && !copied {
		r.reset()
		s.receipts = r
	}
	if !copied {
		s.done = s.doneSQL()
		s.waiting = s.waitingSQL()
	}
	s.dead = s.deadSQL(copied)
	s.undone = fmt.Sprintf("SELECT o.id FROM %s m JOIN unnest($1::text[]) o (id) ON %s = o.id::%s WHERE %s", t.name, t.id, t.idType,
		t.mapping.Unsettled())
	waits := t.waiting
	if fence != "" {
		waits = "true"
	}
	s.still = fmt.Sprintf("SELECT o.id FROM %s m JOIN unnest($1::text[], $2::bigint[]) o (id, token) ON %s WHERE %s",
		t.name, s.same(), waits)
	return s
}

type assignments []string

func (a *assignments) set(name, value string) {
	if name != "" {
		*a = append(*a, schema.QuoteIdentifier(name)+" = "+value)
	}
}

// moment is the time that a mark gets. The transaction may have begun before the message was published.
const moment = "clock_timestamp()"

func (s *statements) doneSQL() string {
	t, m := s.table, &s.table.mapping
	rows := "unnest($1::text[], $2::bigint[]) o (id, token)"
	if s.receipts != nil {
		rows = "unnest($1::text[], $2::bigint[], $3::text[]) o (id, token, partition)"
	}
	if m.Done.How == mapping.DoneDelete {
		return s.on(rows, "DELETE FROM %s m USING %s WHERE %s", "true")
	}
	var set assignments
	switch m.Done.How {
	case mapping.DoneTimestamp:
		set.set(m.Done.Column, moment)
	case mapping.DoneBoolean:
		set.set(m.Done.Column, "true")
	case mapping.DoneStatus:
		set.set(m.Done.Column, schema.QuoteLiteral(m.Done.Value))
	}
	set.set(m.Done.Flag, "true")
	set.set(m.Done.At, moment)
	set.set(m.Done.AckAt, moment)
	set.set(m.Done.UpdatedAt, moment)
	set.set(m.Claim.Owner, "NULL")
	if s.receipts != nil {
		p := t.info.Column(m.Done.Partition)
		set.set(p.Name, fmt.Sprintf("coalesce(o.partition::%s, %s)", p.Type, column(p.Name)))
	}
	return s.on(rows, "UPDATE %s m SET "+verbatim(set)+" FROM %s WHERE %s", s.settledSQL())
}

// verbatim joins assignments for use in a format.
func verbatim(set assignments) string { return strings.ReplaceAll(strings.Join(set, ", "), "%", "%%") }

// on completes a statement that changes the rows m of the list o. format gets the table, the list and the condition.
// took is the condition that a row has got its mark. The statement returns the ids of the rows that were there and
// could be locked, and of those that have got it: see marked.
func (s *statements) on(list, format, took string) string {
	t := s.table
	const ids = "(SELECT array_agg(u.id) FROM u WHERE u.took)"
	if s.locked {
		return "WITH u AS (" + fmt.Sprintf(format, t.name, list, s.same()) + " RETURNING o.id, " + took +
			" AS took) SELECT $1::text[], " + ids
	}
	return lockFirst(t, list, s.same()) + ", u AS (" + fmt.Sprintf(format, t.name, "l o", t.id+" = o.o_id") +
		" RETURNING o.id, " + took + " AS took) SELECT (SELECT array_agg(l.id) FROM l), " + ids
}

// settledSQL is the condition that a row m doesn't wait any more.
func (s *statements) settledSQL() string {
	return "(" + s.table.mapping.Unsettled() + ") IS NOT TRUE"
}

// lockFirst begins a statement with l: the rows m of a list o that fulfil a condition and that no other transaction has
// locked.
func lockFirst(t *table, list, condition string) string {
	return fmt.Sprintf("WITH l AS MATERIALIZED (SELECT %s AS o_id, o.* FROM %s JOIN %s m ON %s FOR UPDATE OF m SKIP LOCKED) ",
		t.id, list, t.name, condition)
}

// same is the condition that m is the row o, and is still ours. A claim tells the row from another that has got its id
// since; without claims the token is the row's identity.
func (s *statements) same() string {
	same := fmt.Sprintf("%s = o.id::%s", s.table.id, s.table.idType)
	if s.fence != "" {
		return same + " AND " + s.fence
	}
	return same + " AND " + s.table.identitySQL() + " = o.token"
}

// told is what same compares with.
func (s *statements) told(c *columns) []*int64 {
	if s.fence != "" {
		return c.tokens
	}
	return c.identity
}

func (s *statements) waitingSQL() string {
	m := &s.table.mapping
	var set assignments
	set.set(m.Failure.Attempts, "o.attempts")
	set.set(m.Failure.Error, "coalesce("+cut(s.table.info, m.Failure.Error)+", m."+schema.QuoteIdentifier(m.Failure.Error)+")")
	set.set(m.Failure.LastAttempt, "now()")
	var otherwise *string
	if c := s.table.info.Column(m.Failure.NextAttempt); c != nil && c.NotNull {
		otherwise = ptr("now()")
	}
	set.set(m.Failure.NextAttempt, nextSQL(otherwise))
	set.set(m.Done.Flag, "false")
	set.set(m.Done.AckAt, "now()")
	set.set(m.Done.UpdatedAt, "now()")
	if m.Claim.Until != "" {
		set.set(m.Claim.Until, nextSQL(ptr("now()")))
	}
	if m.Claim.Status != "" {
		set.set(m.Done.Column, schema.QuoteLiteral(m.Done.Waiting))
	}
	set.set(m.Claim.Owner, "NULL")
	if len(set) == 0 {
		return ""
	}
	return s.on("unnest($1::text[], $2::bigint[], $3::integer[], $4::bigint[], $5::boolean[], $6::text[]) o (id, token, "+
		"attempts, wait, blocked, error)",
		"UPDATE %s m SET "+verbatim(set)+" FROM %s WHERE %s", "true")
}

func ptr(s string) *string { return &s }

// nextSQL is the time of the next attempt; for a row that waits behind another, it is otherwise.
func nextSQL(otherwise *string) string {
	next := "CASE WHEN o.blocked THEN 'infinity'::timestamptz WHEN o.wait IS NOT NULL THEN now() + o.wait * interval '1 microsecond'"
	if otherwise != nil {
		next += " ELSE " + *otherwise
	}
	return next + " END"
}

// cut is the error of o, cut to the length of its column. A cast cuts a text that is too long, an assignment refuses
// it.
func cut(t *mapping.Table, name string) string {
	if c := t.Column(name); c != nil {
		return "o.error::" + c.Type
	}
	return "o.error"
}

func (s *statements) deadSQL(copied bool) string {
	t, m := s.table, &s.table.mapping
	const outcome = `unnest($1::text[], $2::bigint[], $3::integer[], $4::text[], $5::text[]) o (id, token, attempts, reason, error)`
	switch {
	case m.Failure.FailedValue != "":
		var set assignments
		set.set(m.Done.Column, schema.QuoteLiteral(m.Failure.FailedValue))
		set.set(m.Failure.Attempts, "o.attempts")
		set.set(m.Failure.Error, cut(t.info, m.Failure.Error))
		set.set(m.Failure.LastAttempt, "now()")
		set.set(m.Done.AckAt, "now()")
		set.set(m.Done.UpdatedAt, "now()")
		set.set(m.Claim.Owner, "NULL")
		return s.on(outcome, "UPDATE %s m SET "+verbatim(set)+" FROM %s WHERE %s", s.settledSQL())
	case t.dead == nil:
		return ""
	}
	// The description of the last attempt in the dead letter replaces the row's own.
	values, columns := make(map[string]string), ""
	for i, c := range t.info.Columns {
		if t.dead.Column(c.Name) != nil || slices.Contains([]string{m.ID, m.MessageID, m.Payload}, c.Name) {
			values[c.Name] = fmt.Sprintf("l.c%d", i)
			columns += fmt.Sprintf(", %s AS c%d", column(c.Name), i)
		}
	}
	for name, value := range map[string]string{"reason": "l.reason",
		"error": cut(t.dead, "error"), "attempts": "l.attempts", "dead_at": "now()",
		m.Failure.Error: cut(t.dead, m.Failure.Error), m.Failure.Attempts: "l.attempts"} {
		values[name] = strings.Replace(value, "o.error", "l.error", 1)
	}
	var names, from []string
	for _, c := range t.dead.Columns {
		if value, ok := values[c.Name]; ok && !c.Generated {
			names, from = append(names, schema.QuoteIdentifier(c.Name)), append(from, value)
		}
	}
	list := fmt.Sprintf("SELECT o.*, %s AS o_id%s FROM %s JOIN %s m ON %s", t.id, columns, outcome, t.name, s.same())
	end := "SELECT (SELECT array_agg(l.id) FROM l), (SELECT array_agg(l.id) FROM l WHERE " + t.keptSQL("n") + " = 0)"
	if !copied {
		list += " FOR UPDATE OF m SKIP LOCKED"
		end = fmt.Sprintf(", u AS (DELETE FROM %s m USING l WHERE %s = l.o_id AND %s = 0 RETURNING l.id) "+
			"SELECT (SELECT array_agg(l.id) FROM l), (SELECT array_agg(u.id) FROM u)", t.name, t.id, t.keptSQL("n"))
	}
	return fmt.Sprintf("WITH l AS MATERIALIZED (%s), n AS MATERIALIZED (SELECT l.* FROM l WHERE %s), k AS (\n"+
		"INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM n l RETURNING 1) %s",
		list, t.notDeadYet(func(name string) string { return values[name] }),
		t.dead.TableName(), strings.Join(names, ", "), strings.Join(from, ", "), end)
}

// notKept is in the error of keptSQL.
const notKept = "the table for dead letters has not kept "

// keptSQL is 0 if all rows of news are among those that an INSERT has returned, k. Otherwise it is an error of the
// server's, so that nothing of the statement's transaction remains: a trigger can drop a row without an error.
func (t *table) keptSQL(news string) string {
	return fmt.Sprintf("(SELECT CASE WHEN missing = 0 THEN 0 ELSE format('%s%%s', missing)::integer END "+
		"FROM (SELECT (SELECT count(*) FROM %s) - (SELECT count(*) FROM k) AS missing) kept)", notKept, news)
}

// notDeadYet is the condition that the dead-letter table doesn't have the message yet: after a crash the message can be
// buried again. A message is recognized by all identifying columns and by its payload. If another message has the same
// id, the insert conflicts and fails: ids repeat, and an existing row is no reason to drop this one. value returns what
// goes into a column, "" for nothing.
func (t *table) notDeadYet(value func(name string) string) string {
	var same []string
	for _, name := range []string{t.mapping.ID, t.mapping.MessageID, t.mapping.Payload} {
		c, v := t.dead.Column(name), value(name)
		switch {
		case c == nil || v == "":
		case name == t.mapping.ID:
			same = append(same, fmt.Sprintf("d.%s = (%s)::%s", schema.QuoteIdentifier(name), v, c.Type))
		default: // some types have no equality operator
			same = append(same, fmt.Sprintf("d.%s::text IS NOT DISTINCT FROM (%s)::%s::text", schema.QuoteIdentifier(name), v, c.Type))
		}
	}
	if same == nil {
		return "true"
	}
	return fmt.Sprintf("NOT EXISTS (SELECT FROM %s d WHERE %s)", t.dead.TableName(), strings.Join(same, " AND "))
}

// queue adds the statements that store o to a batch: one round trip, one transaction. When the batch is closed, left
// has what was not stored.
func (s *statements) queue(conn *pgx.Conn, b *pgx.Batch, o, left *outcomes) error {
	add := func(marks []mark, sql string, left *[]mark, args ...any) {
		b.Queue(sql, args...).QueryRow(func(row pgx.Row) error {
			var there, marked []string
			if err := row.Scan(&there, &marked); err != nil {
				return err
			}
			*left = append(*left, unmarked(marks, there, marked)...)
			return nil
		})
	}
	if len(o.delivered) > 0 && s.done != "" {
		add(o.delivered, s.done, &left.delivered, s.doneArgs(o.delivered)...)
		if s.table.follows.Load() {
			b.Queue(s.undone, newColumns(o.delivered).ids).Query(func(rows pgx.Rows) error {
				ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
				for _, m := range only(only(o.delivered, ids, true), idsOf(left.delivered), false) {
					m.undone = true
					left.delivered = append(left.delivered, m)
				}
				return err
			})
		}
	}
	if len(o.waiting) > 0 && s.waiting != "" {
		add(o.waiting, s.waiting, &left.waiting, s.waitingArgs(conn, o.waiting)...)
	}
	if len(o.dead) > 0 {
		if s.dead == "" {
			return relay.Final(fmt.Errorf("%w (table %s, id %s: %w)", errNoPlace, s.table.name, o.dead[0].id, o.dead[0].err))
		}
		add(o.dead, s.dead, &left.dead, s.deadArgs(conn, o.dead)...)
	}
	return nil
}

func (s *statements) doneArgs(marks []mark) []any {
	c := newColumns(marks)
	if s.receipts == nil {
		return []any{c.ids, s.told(c)}
	}
	return []any{c.ids, s.told(c), s.receipts.take(marks)}
}

func (s *statements) waitingArgs(conn *pgx.Conn, marks []mark) []any {
	c := newColumns(marks)
	return []any{c.ids, s.told(c), c.attempts, c.waits, c.blocked, notes(conn, marks)}
}

func (s *statements) deadArgs(conn *pgx.Conn, marks []mark) []any {
	c := newColumns(marks)
	return []any{c.ids, s.told(c), c.attempts, c.reasons, notes(conn, marks)}
}

// unmarked returns the marks that rows have not got: of rows that were not there, or that another transaction has
// locked, and of those that were there, which something has undone.
func unmarked(marks []mark, there, marked []string) (left []mark) {
	if len(marked) == len(marks) {
		return nil
	}
	left = only(marks, marked, false)
	undone := make(map[string]bool, len(there))
	for _, id := range there {
		undone[id] = true
	}
	for i := range left {
		left[i].undone = undone[left[i].id]
	}
	return left
}

// only returns the marks whose ids are in the list, or, if listed is false, the other marks.
func only(marks []mark, ids []string, listed bool) (some []mark) {
	list := make(map[string]bool, len(ids))
	for _, id := range ids {
		list[id] = true
	}
	for i := range marks {
		if list[marks[i].id] == listed {
			some = append(some, marks[i])
		}
	}
	return some
}

// store stores o in one transaction, and before it what is left from earlier calls. Rows that another transaction has
// locked are left for later. Rows that another program has marked are done.
//
// If the server refuses a row, all rows are stored one by one, and the refused ones are left for later too. Otherwise
// the session would end, and every later session would publish everything again and fail at the same row.
func (s *statements) store(ctx context.Context, conn *pgx.Conn, o *outcomes, later *later) error {
	o = later.with(o)
	var again []string
	for _, m := range o.all() {
		if !m.again.IsZero() {
			again = append(again, m.id)
		}
	}
	fresh, alone := o.among(again, false), o.among(again, true)
	left, err := s.write(ctx, conn, &fresh)
	if refuses(err, &fresh) {
		left, alone, err = outcomes{}, fresh.and(alone), nil
	}
	if err != nil {
		return err
	}
	locked, refused, err := s.singly(ctx, conn, &alone)
	if err != nil {
		return err
	}
	refused = refused.and(s.postpone(&left))
	left = left.and(locked)
	if all := left.all(); len(all) > 0 {
		c := newColumns(all)
		rows, err := conn.Query(ctx, s.still, c.ids, s.told(c))
		if err != nil {
			return fmt.Errorf("look for rows that are locked: %w", explain(err))
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("look for rows that are locked: %w", explain(err))
		}
		if gone := len(all) - len(ids); gone > 0 && s.fence != "" {
			s.logger.Warn("messages were marked or taken over by another program", "table", s.table.name, "messages", gone)
		}
		left = left.among(ids, true)
	}
	later.set(o, refused.and(left))
	return nil
}

func (s *statements) write(ctx context.Context, conn *pgx.Conn, o *outcomes) (left outcomes, err error) {
	b := &pgx.Batch{}
	if err := s.queue(conn, b, o, &left); err != nil {
		return left, err
	}
	err = send(ctx, conn, b)
	if err != nil && len(o.dead) > 0 && s.table.dead != nil {
		err = s.table.explainDead(err)
	}
	return left, err
}

// postpone takes out of left the marks that were undone, and logs the first of them.
func (s *statements) postpone(left *outcomes) (undone outcomes) {
	took := func(marks []mark) (some, others []mark) {
		for _, m := range marks {
			if !m.undone {
				others = append(others, m)
				continue
			}
			if m.again.IsZero() && undone.empty() && some == nil {
				s.logger.Error("nothing more is read: the message is sent again when the relay restarts", "table", s.table.name, "id", m.id,
					"error", s.table.errUndone())
			}
			m.again = time.Now().Add(againAfter)
			some = append(some, m)
		}
		return some, others
	}
	undone.delivered, left.delivered = took(left.delivered)
	undone.waiting, left.waiting = took(left.waiting)
	undone.dead, left.dead = took(left.dead)
	return undone
}

// errUndone is the error of rows that were there and could be marked, and yet don't have their marks.
func (t *table) errUndone() error {
	return fmt.Errorf("table %s doesn't keep the marks of its rows, so they would be sent again and again: one of its triggers undoes "+
		"them, by RETURN OLD, by RETURN NULL, or by setting the column back: have it let the relay's changes pass. Then the "+
		"relay goes on by itself", t.name)
}

// againAfter is the pause before a refused mark is tried again: a person has to repair something first. Tests shorten
// it.
var againAfter = 5 * time.Second

// singly stores each mark by itself; in a transaction, under a savepoint. refused has the marks that the server
// refuses, and those that it has refused recently.
func (s *statements) singly(ctx context.Context, conn *pgx.Conn, o *outcomes) (left, refused outcomes, err error) {
	for _, one := range o.singles() {
		m := one.all()[0]
		if time.Now().Before(m.again) {
			refused = refused.and(one)
			continue
		}
		var locked outcomes
		err := s.table.attempt(ctx, conn, func() (err error) {
			locked, err = s.write(ctx, conn, &one)
			return err
		})
		switch {
		case err == nil:
			refused = refused.and(s.postpone(&locked))
			left = left.and(locked)
		case !refuses(err, &one):
			return left, refused, err
		default:
			if m.again.IsZero() {
				s.logger.Error("the database refuses to mark a row: the row waits and the others continue; repair what "+
					"the error names, otherwise the message is sent again when the relay restarts",
					"table", s.table.name, "id", m.id, "delivered", len(one.delivered) > 0, "error", err)
			}
			again := time.Now().Add(againAfter)
			one.each(func(m *mark) { m.again = again })
			refused = refused.and(one)
		}
	}
	return left, refused, nil
}

// refuses reports whether an error of storing o is the server's answer about a row: about its values, a constraint, an
// error raised by a trigger of the table's owner, or, of a dead letter, that it can't be kept.
func refuses(err error, o *outcomes) bool {
	code := sqlstate.Of(err)
	return schema.IsDataError(err) || strings.HasPrefix(code, "P0") || len(o.dead) > 0 && (code == "42501" || code == "0A000")
}

// later is what could not be stored because another transaction, such as a writer's, has locked the rows, or because
// the server refuses them. The next settlement or a later poll stores it. After a crash such rows come again. Safe for
// concurrent use; store runs once at a time.
type later struct {
	mu   sync.Mutex
	left outcomes
}

// with returns o and what is left, without the rows for which o has a newer outcome.
func (l *later) with(o *outcomes) *outcomes {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left.empty() {
		return o
	}
	before := l.left.among(idsOf(o.all()), false)
	all := before.and(*o)
	return &all
}

// set replaces what is left of the rows of o.
func (l *later) set(o *outcomes, left outcomes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.left.empty() {
		others := l.left.among(idsOf(o.all()), false)
		left = others.and(left)
	}
	l.left = left
}

func (l *later) all() []mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.left.all()
}

// renew notes new tokens of claims, by the ids of their rows.
func (l *later) renew(tokens map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left.each(func(m *mark) {
		if token, ok := tokens[m.id]; ok {
			m.token = token
		}
	})
}

// undone reports whether marks are left that something undoes.
func (l *later) undone() bool {
	return slices.ContainsFunc(l.all(), func(m mark) bool { return m.undone })
}

// known adds the ids to those that a poll leaves out.
func (l *later) known(ids []string) []string { return append(ids, idsOf(l.all())...) }

func idsOf(marks []mark) (ids []string) {
	for i := range marks {
		ids = append(ids, marks[i].id)
	}
	return ids
}

// send runs a batch, whose statements are one transaction.
func send(ctx context.Context, conn *pgx.Conn, b *pgx.Batch) error {
	if b.Len() == 0 {
		return nil
	}
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("mark rows: %w", explain(err))
	}
	return nil
}

// explainDead is explain for a statement that keeps dead letters.
func (t *table) explainDead(err error) error {
	switch code := sqlstate.Of(err); {
	case code == "42501" && t.lacks != "":
		return outbox.Permanent(fmt.Errorf("%w: a dead letter is copied to %s, and this role lacks a right for that: %s", err,
			t.dead.TableName(), t.lacks))
	case code == "0A000", code == "22P02" && strings.Contains(err.Error(), notKept):
		return outbox.Permanent(fmt.Errorf("%w: table %s drops a row without an error, so the dead letter stays where it is: one of "+
			"its triggers returns NULL, or a rule rewrites the INSERT: have it let the row pass, or name another table in "+
			"failure.dead_table", err, t.dead.TableName()))
	}
	return explain(err)
}

// explain adds to a server's error what to do about it.
func explain(err error) error {
	switch sqlstate.Of(err) {
	case "42501":
		if hidden := schema.ExplainHidden(err); errors.Is(hidden, schema.ErrHidden) {
			return outbox.Permanent(hidden)
		}
		return outbox.Permanent(fmt.Errorf("%w: grant this role what the statement needs: SELECT, and UPDATE or DELETE to mark rows", err))
	case "23505":
		return outbox.Permanent(fmt.Errorf("%w: another message has this key already; if that is in the table for "+
			"dead letters, ids were used twice: move its row away, or leave out the unique index there", err))
	case "0A000":
		return outbox.Permanent(fmt.Errorf("%w: a rule of the table rewrites the statements by which a relay marks rows: "+
			"use a trigger instead", err))
	case "42P10", "55000":
		// A publication makes the server refuse changes of the table. This routine's details have names; those of
		// others, or of a trigger, may have values.
		refused := (*pgconn.PgError)(nil)
		if errors.As(err, &refused) && refused.Routine == "CheckCmdReplicaIdentity" {
			return outbox.Permanent(fmt.Errorf("%w: %s", err, strings.TrimSpace(refused.Detail+" "+refused.Hint)))
		}
	case "42P01", "42703", "23502", "23514", "42804":
		return outbox.Permanent(fmt.Errorf("%w: the mapping doesn't fit the tables", err))
	}
	return err
}

// columns are outcomes as the statements unnest them.
type columns struct {
	ids      []string
	tokens   []*int64 // of claims
	identity []*int64 // of rows
	attempts []int32
	waits    []*int64
	blocked  []bool
	reasons  []string
}

func newColumns(marks []mark) *columns {
	c := &columns{}
	for i := range marks {
		m := &marks[i]
		c.ids = append(c.ids, m.id)
		var token *int64
		if n, err := strconv.ParseInt(m.token, 10, 64); err == nil {
			token = &n
		}
		c.tokens, c.identity = append(c.tokens, token), append(c.identity, &m.identity)
		c.attempts = append(c.attempts, int32(min(m.attempts, 1<<15-1))) // the column may be a smallint
		var wait *int64
		if m.wait != nil {
			us := m.wait.Microseconds()
			wait = &us
		}
		c.waits = append(c.waits, wait)
		c.blocked = append(c.blocked, m.blocked)
		c.reasons = append(c.reasons, string(m.reason))
	}
	return c
}

func notes(conn *pgx.Conn, marks []mark) (all []*string) {
	for i := range marks {
		all = append(all, schema.Note(conn, marks[i].err))
	}
	return all
}
