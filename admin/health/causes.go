package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/schema"
)

// Holder is a transaction that has locked what relays need, or what they wait for.
type Holder struct {
	OpenTransaction

	// Relays are the names of the relays that wait for it.
	Relays []string `json:"relays,omitempty"`
	// Table means that it has locked a whole table of the outbox.
	Table bool `json:"table,omitempty"`
	// Cursors means that it has locked rows of the cursors, or may have.
	Cursors bool `json:"cursors,omitempty"`
}

var errLocked = errors.New("the outbox's tables are locked")

// lockedFor is how long a relay must have waited for a transaction before that is a cause. Transactions of operators
// and other relays last milliseconds.
const lockedFor = "1 second"

// awaitLocks is how long a statement of a look waits for a lock. After that the look is over, and says who has the
// lock.
const awaitLocks = 2 * time.Second

// readHolders reads no table of the outbox, so it waits for no lock. Locks on a whole table, and on rows of the
// cursors, count although no relay waits at the moment: relays give up after a while, and try again later.
func (r *Report) readHolders(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		WITH waiting AS (
			SELECT DISTINCT l.pid, regexp_replace(a.application_name, '^outbox [^ ]+ ', '') AS relay
			FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
			WHERE NOT l.granted AND l.waitstart < clock_timestamp() - interval '`+lockedFor+`'
			  AND a.datname = current_database() AND a.application_name LIKE 'outbox %'
		), holding AS (
			SELECT p.pid, w.relay, NULL AS mode FROM waiting w, unnest(pg_blocking_pids(w.pid)) AS p (pid)
			UNION
			SELECT l.pid, NULL, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
			WHERE l.granted AND l.locktype = 'relation' AND l.pid IS NOT NULL
			  AND (l.mode = 'AccessExclusiveLock' OR l.mode IN ('RowShareLock', 'RowExclusiveLock') AND c.relname = 'cursors')
			  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND c.relnamespace = 'outbox'::regnamespace
		)
		SELECT a.pid, coalesce(a.usename, '')::text, coalesce(a.application_name, ''), coalesce(a.state, ''), a.xact_start,
		       coalesce(left(regexp_replace(a.query, '[[:space:]]+', ' ', 'g'), 120), ''), array_remove(array_agg(DISTINCT h.relay), NULL),
		       coalesce(bool_or(h.mode = 'AccessExclusiveLock'), false), coalesce(bool_or(h.mode LIKE 'Row%'), false)
		FROM holding h JOIN pg_stat_activity a ON a.pid = h.pid
		WHERE a.application_name NOT LIKE 'outbox %' AND coalesce(a.xact_start < clock_timestamp() - interval '`+lockedFor+`', true)
		GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY a.xact_start`)
	if err != nil {
		return fmt.Errorf("look for locks: %w", err)
	}
	r.Holders, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Holder, error) {
		var h Holder
		var since *time.Time
		err := row.Scan(&h.PID, &h.User, &h.Application, &h.State, &since, &h.Query, &h.Relays, &h.Table, &h.Cursors)
		h.Since = admin.Value(since)
		return h, err
	})
	if err != nil {
		return fmt.Errorf("look for locks: %w", err)
	}
	return nil
}

// excused is what can be said when the tables of the outbox can't be read, because they are locked or a relay's role,
// which asks, has lost a right: nil if that is not why.
func excused(ctx context.Context, db admin.DB, why error) (*Report, error) {
	locked := errors.Is(why, errLocked) || sqlstate.Of(why) == "55P03"
	if !locked && sqlstate.Of(why) != "42501" {
		return nil, nil
	}
	r := &Report{unread: why.Error()}
	err := admin.Read(ctx, db, func(tx pgx.Tx) error {
		if err := r.readClock(ctx, tx); err != nil {
			return err
		}
		if locked {
			return r.readHolders(ctx, tx)
		}
		if shut, err := r.shutOut(ctx, tx); shut || err != nil {
			return err
		}
		if err := r.readRelays(ctx, tx); err != nil {
			return err
		}
		r.Relays = slices.DeleteFunc(r.Relays, func(relay Relay) bool { return relay.User != tx.Conn().Config().User })
		return r.readRights(ctx, tx)
	})
	if _, found := r.excuse(); err != nil || !found {
		return nil, err
	}
	r.judge(allRules)
	return r, nil
}

// shutOut finds out that a relay that asks for itself may not use the schema, whose tables then have no name for it.
// Its sessions bear its name. Anyone else is told by the error which right is missing.
func (r *Report) shutOut(ctx context.Context, tx pgx.Tx) (bool, error) {
	relay := Relay{Lacks: []string{"USAGE on schema outbox"}}
	err := tx.QueryRow(ctx, `SELECT current_user::text, regexp_replace(a.name, '^outbox (monitor|api) ', '')
		FROM pg_namespace n, current_setting('application_name') a (name)
		WHERE n.nspname = 'outbox' AND a.name ~ '^outbox (monitor|api) ' AND NOT has_schema_privilege(n.oid, 'USAGE')`).Scan(&relay.User, &relay.Name)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	r.Relays = []Relay{relay}
	return true, err
}

// excuse is the finding on a report that has no more than this.
func (r *Report) excuse() (Finding, bool) {
	if len(r.Holders) > 0 {
		return r.holdUp(r.Holders[0]), true
	}
	for _, relay := range r.Relays {
		if len(relay.Lacks) > 0 {
			return relay.lacking(), true
		}
	}
	return Finding{}, false
}

func (r *Report) readClock(ctx context.Context, tx pgx.Tx) error {
	return tx.QueryRow(ctx, `SELECT clock_timestamp(), current_database()::text`).Scan(&r.At, &r.Database)
}

// who names the transaction as a person finds it.
func (t OpenTransaction) who(at time.Time) string {
	if t.Prepared != "" {
		return fmt.Sprintf("the prepared transaction %q", t.Prepared)
	}
	text := fmt.Sprintf("the transaction of process %d (", t.PID)
	for _, part := range []struct{ name, value string }{{"user", t.User}, {"application", t.Application}} {
		if part.value != "" {
			text += part.name + " " + part.value + ", "
		}
	}
	text += admin.OrElse(t.State, "state unknown")
	if !t.Since.IsZero() {
		text += fmt.Sprintf(", open for %s", printed.Span(at.Sub(t.Since)))
	}
	if t.Query != "" && t.Query != "<insufficient privilege>" {
		text += ", statement: " + t.Query
	}
	return text + ")"
}

// ending is what to do about a transaction that others wait for. What ends it undoes its work, so it is never the next
// command.
func (t OpenTransaction) ending() string {
	sql := fmt.Sprintf("SELECT pg_terminate_backend(%d)", t.PID)
	if t.Prepared != "" {
		sql = "ROLLBACK PREPARED " + schema.QuoteLiteral(t.Prepared)
	}
	return "have its owner end it; this SQL ends it and undoes what it did: " + sql
}

func (r *Report) holdUp(h Holder) Finding {
	f := Finding{State: StateBroken, Since: h.Since, Cause: h.who(r.At) + " has locked what the relay needs",
		Advice: h.ending()}
	if len(r.Holders) > 1 {
		f.Cause += fmt.Sprintf(", and %d more", len(r.Holders)-1)
	}
	return f
}

func heldUp(r *Report, _ *Destination, g *Group) (Finding, bool) {
	for _, h := range r.Holders {
		// A relay that could not renew its lease has lost it, and is between two attempts.
		lost := h.Cursors && !g.Live && h.Since.Before(g.LeaseUntil)
		if r.unread != "" || lost || slices.Contains(h.Relays, g.Owner) {
			return r.holdUp(h), true
		}
	}
	return Finding{}, false
}

// powerless goes by the catalogue, for a relay that lacks a right may not be able to write so.
func powerless(r *Report, d *Destination, g *Group) (Finding, bool) {
	for _, relay := range r.Relays {
		if len(relay.Lacks) > 0 && d.Table == nil && (r.unread != "" || relay.Name == g.Owner) {
			return relay.lacking(), true
		}
	}
	return Finding{}, false
}

func (relay Relay) lacking() Finding {
	lacks := strings.Join(relay.Lacks[:min(3, len(relay.Lacks))], ", ")
	if more := len(relay.Lacks) - 3; more > 0 {
		lacks += fmt.Sprintf(" and %d more", more)
	}
	return Finding{State: StateBroken, Cause: fmt.Sprintf("the role %s of %s lacks %s", relay.User, relay.Name, lacks),
		Advice: "as the owner of the schema", Next: "outbox migrate grants --apply --relay " + shell.Word(relay.User)}
}

const goneRole = "does not exist any more"

// readRights finds what relays may not do and need. A relay that has lost a right may have no session, and can't renew
// its heartbeat, so those that don't seem to live count as well.
func (r *Report) readRights(ctx context.Context, tx pgx.Tx) error {
	type role struct {
		barred string
		lacks  []string
	}
	known := map[string]role{}
	for i := range r.Relays {
		relay := &r.Relays[i]
		its, asked := known[relay.User]
		if !asked {
			err := tx.QueryRow(ctx, `SELECT CASE WHEN r.oid IS NULL THEN '`+goneRole+`' WHEN NOT r.rolcanlogin THEN 'may not log in'
				WHEN NOT has_database_privilege(r.oid, current_database(), 'CONNECT') THEN 'may not connect to this database' ELSE '' END
				FROM (VALUES (1)) one LEFT JOIN pg_roles r ON r.rolname = $1::text`, relay.User).Scan(&its.barred)
			if err != nil {
				return fmt.Errorf("look at the role %s: %w", relay.User, err)
			}
			if its.barred != goneRole {
				if its.lacks, err = schema.RelayLacks(ctx, tx, relay.User); err != nil && sqlstate.Of(err) != "42P01" {
					return err
				}
			}
			known[relay.User] = its
		}
		relay.Lacks, relay.Barred = its.lacks, its.barred
	}
	return nil
}

// clockApart is from where on two clocks differ by more than what networks and good clocks explain.
const clockApart = time.Minute

func clockOff(r *Report, d *Destination) (Finding, bool) {
	for _, relay := range r.Relays {
		if !relay.Live || relay.ClockAhead.Abs() < clockApart ||
			!slices.ContainsFunc(d.Groups, func(g Group) bool { return g.Owner == relay.Name }) {
			continue
		}
		side := "ahead of"
		if relay.ClockAhead < 0 {
			side = "behind"
		}
		return Finding{State: StateAtRisk, Cause: fmt.Sprintf("the clock of %s on host %s is %s %s the database's", relay.Name, relay.Host,
			printed.Span(relay.ClockAhead.Abs()), side),
			Advice: "find out which of both is wrong, and have it set by NTP; order and leases don't depend on it, but " +
				"logins, signatures, " +
				"certificates, delivery times and ages do. On the machine that is wrong", Next: "timedatectl set-ntp true"}, true
	}
	return Finding{}, false
}

func unindexed(r *Report, d *Destination) (Finding, bool) {
	if d.Table != nil || len(r.Unindexed) == 0 {
		return Finding{}, false
	}
	return Finding{State: StateAtRisk, Cause: "an index of the outbox is missing or not valid, and relays read whole tables instead",
		Advice: "as the owner of the schema run: " + strings.Join(r.Unindexed, "; ") + "; writers wait meanwhile"}, true
}

func slotKeeps(_ *Report, d *Destination) (Finding, bool) {
	if d.Slot == nil || d.Slot.Status != "extended" && d.Slot.Status != "unreserved" {
		return Finding{}, false
	}
	text := "more than max_wal_size"
	if d.Slot.Status == "unreserved" {
		text = "and the server will give it up soon"
	} else if d.Slot.Left != nil {
		text = fmt.Sprintf("and gives it up when %s more are written (max_slot_wal_keep_size)", printed.Bytes(max(*d.Slot.Left, 0)))
	}
	lost := "it is read from the table if the slot is lost"
	if d.Table != nil {
		lost = "what it has not read is lost with the slot"
	}
	return Finding{State: StateAtRisk, Cause: fmt.Sprintf("the server keeps %s of its log for slot %s, %s",
		printed.Bytes(d.Slot.Kept), d.Slot.Name, text),
		Advice: "have the destination deliver again; " + lost + ". If the relay is healthy, look at who else writes that much"}, true
}
