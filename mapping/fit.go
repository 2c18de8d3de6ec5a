package mapping

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/schema"
)

// Fit reports every column that m names and t doesn't have, that has a wrong type, or that can't mark rows: by which no
// row could look as if it waited, or that a relay can't write. The error wraps ErrMapping and names the column and the
// table. Allowed also asks the server.
func (m *Mapping) Fit(t *Table) error {
	f := fitting{table: t}
	f.types(m)
	f.unique(m.ID)
	return f.err()
}

// FitTypes is Fit without the question whether ids are unique.
func (m *Mapping) FitTypes(t *Table) error {
	f := fitting{table: t}
	f.types(m)
	return f.err()
}

func (f *fitting) types(m *Mapping) {
	t := f.table
	text := []Kind{KindText, KindUUID, KindInteger, KindEnum}
	f.column("id", m.ID, KindInteger, KindUUID, KindText)
	f.column("message_id", m.MessageID, KindUUID, KindText, KindInteger)
	for _, c := range templateColumns(m.Topic) {
		f.column("topic", c, text...)
	}
	for _, c := range templateColumns(m.Key) {
		f.column("key", c, append(text, KindBytes)...)
	}
	f.column("aggregate_type", m.AggregateType, text...)
	f.column("aggregate_id", m.AggregateID, text...)
	f.column("event_type", m.EventType, text...)
	f.column("payload", m.Payload, KindBytes, KindJSON, KindText)
	f.column("content_type", m.ContentType, text...)
	f.column("headers", m.Headers, KindJSON, KindText)
	f.column("created_at", m.CreatedAt, KindTime)
	f.column("deliver_at", m.DeliverAt, KindTime)
	f.column("order", m.Order, KindInteger, KindUUID, KindText, KindTime)
	f.column("priority", m.Priority, KindInteger)
	for _, h := range m.HeaderColumns {
		f.column("header "+h.Name, h.Column)
		if c := t.Column(h.Column); c != nil && c.Varies {
			f.fault(c, "is of type %s, whose text depends on the reader's search path or time zone, so it can't be the header %s: "+
				"name a column of type text, or one of type timestamptz", c.Type, h.Name)
		}
	}
	switch m.Done.How {
	case DoneTimestamp:
		f.column("done", m.Done.Column, KindTime)
	case DoneBoolean:
		f.column("done", m.Done.Column, KindBoolean)
	case DoneStatus:
		f.column("done", m.Done.Column, KindText, KindEnum)
	}
	f.column("done flag", m.Done.Flag, KindBoolean)
	f.column("done at", m.Done.At, KindTime)
	f.column("ack at", m.Done.AckAt, KindTime)
	f.column("updated at", m.Done.UpdatedAt, KindTime)
	f.column("broker's partition", m.Done.Partition, KindText, KindInteger)
	f.column("attempts", m.Failure.Attempts, KindInteger)
	f.column("error", m.Failure.Error, KindText)
	f.column("last attempt", m.Failure.LastAttempt, KindTime)
	f.column("next attempt", m.Failure.NextAttempt, KindTime)
	f.column("claimed until", m.Claim.Until, KindTime)
	f.column("claimed since", m.Claim.Since, KindTime)
	f.column("owner", m.Claim.Owner, KindText)
	f.column("topic of the offset", m.Offsets.Topic, KindText)
	f.column("partition of the offset", m.Offsets.Partition, KindInteger)
	f.column("transaction", m.Offsets.Transaction, KindXID8)
	f.marks(m)
}

type fitting struct {
	table  *Table
	faults []error
}

func (f *fitting) err() error {
	if len(f.faults) > 0 {
		return fmt.Errorf("%w: %w", ErrMapping, errors.Join(f.faults...))
	}
	return nil
}

// column notes a fault unless the table has the column with one of the kinds; with any kind, if none is given.
func (f *fitting) column(what, name string, kinds ...Kind) {
	if name == "" {
		return
	}
	c := f.table.Column(name)
	if c == nil {
		f.faults = append(f.faults, fmt.Errorf("table %s has no column %q (%s)", f.table.TableName(), name, what))
		return
	}
	if len(kinds) > 0 && !slices.Contains(kinds, c.Kind) {
		f.faults = append(f.faults, fmt.Errorf("column %q of table %s is of type %s, which can't be the %s: want one of %q",
			name, f.table.TableName(), c.Type, what, kinds))
	}
}

// unique notes a fault unless the column alone identifies rows. An index does that within one table: a partitioned
// table can have one over all its partitions only if the column is their key, and children by inheritance have
// indexes of their own. Otherwise ids must come from one source. A relay would mark all rows of an id when it has
// delivered one of them.
func (f *fitting) unique(id string) {
	c := f.table.Column(id)
	if c == nil {
		return
	}
	alone, within := f.table.uniquely(id)
	const lost = "two rows could have the same one, and be marked when one of them is delivered: "
	switch family := f.table.spread(id); {
	case !alone && !(f.table.Partitioned && within):
		f.faults = append(f.faults,
			fmt.Errorf("column %q of table %s has no unique index of its own (without WHERE, and in the column's collation if that "+
				"takes different texts for equal), so it can't be the id", id, f.table.TableName()))
	case family && len(c.Apart) > 0 && c.oneSource() == "":
		f.fault(c, "can't be the id: in %s its values don't come from where they come from in the table itself, so "+lost+
			"let them have the same default, from one sequence (ALTER TABLE … ALTER COLUMN %s SET DEFAULT nextval('…'), after "+
			"DROP IDENTITY if it is one), or be UUIDs",
			strings.Join(c.Apart, ", "), schema.QuoteIdentifier(id))
	case family && c.oneSource() == "":
		f.fault(c, "can't be the id: its unique index has more columns, and its values come from no sequence without CYCLE and are no "+
			"UUIDs, so "+lost+"give it a default from one sequence (ALTER TABLE %s ALTER COLUMN %s SET DEFAULT nextval('…')) or of "+
			"gen_random_uuid(), if values are unique in all partitions, or name another column",
			f.table.TableName(), schema.QuoteIdentifier(id))
	}
}

// marks notes every column that can't hold what marks a row. A row that can never look as if it waited would not be
// delivered, and nothing would tell.
func (f *fitting) marks(m *Mapping) {
	for _, w := range []struct{ what, name string }{
		{"done", m.Done.Column}, {"done flag", m.Done.Flag}, {"done at", m.Done.At}, {"ack at", m.Done.AckAt},
		{"updated at", m.Done.UpdatedAt}, {"broker's partition", m.Done.Partition}, {"attempts", m.Failure.Attempts},
		{"error", m.Failure.Error}, {"last attempt", m.Failure.LastAttempt}, {"next attempt", m.Failure.NextAttempt},
		{"claimed until", m.Claim.Until}, {"claimed since", m.Claim.Since}, {"owner", m.Claim.Owner},
	} {
		if c := f.table.Column(w.name); c != nil && (c.Generated || c.Identity) {
			f.fault(c, "is generated, so a relay can't write it (%s)", w.what)
		}
	}
	if c := f.table.Column(m.Claim.Owner); c != nil && c.NotNull {
		f.fault(c, "is NOT NULL, so a relay can't give a row back by it (owner): let it be NULL while no relay has the row")
	}
	if c := f.table.Column(m.Done.Column); c != nil {
		f.waits(m, c)
	}
}

// marked reports whether the columns that mark rows fit.
func (m *Mapping) marked(t *Table) bool {
	f := fitting{table: t}
	f.marks(m)
	return f.faults == nil
}

// waits notes why the column c can't distinguish new rows, or rows that are done.
func (f *fitting) waits(m *Mapping, c *TableColumn) {
	const never = "so new rows look as if they had been delivered, and never are"
	alter := fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s ", f.table.TableName(), schema.QuoteIdentifier(c.Name))
	switch m.Done.How {
	case DoneTimestamp:
		if c.NotNull {
			f.fault(c, "is NOT NULL, %s: if it is the time of sending, let it be NULL until then, in its domain too (%sDROP NOT NULL); "+
				"otherwise name another column in done", never, alter)
		}
		if c.Default != "" && !null.MatchString(c.Default) {
			f.fault(c, "has the default %s, %s: %sDROP DEFAULT", c.Default, never, alter)
		}
	case DoneBoolean:
		if c.Default == "true" {
			f.fault(c, "has the default true, %s: %sSET DEFAULT false", never, alter)
		}
	case DoneStatus:
		if d := literal.FindStringSubmatch(c.Default); d != nil {
			if initial := strings.ReplaceAll(d[1], "''", "'"); initial == m.Done.Value || initial == m.Failure.FailedValue {
				f.fault(c, "has the default %s, %s: %sSET DEFAULT %s", c.Default, never, alter, schema.QuoteLiteral(m.Done.Waiting))
			}
		}
		for _, s := range m.statuses() {
			switch {
			case c.Kind == KindEnum && !slices.Contains(c.Labels, s.value):
				f.fault(c, "is of the type %s, which has no value %q (%s): it has %q", c.Type, s.value, s.what, c.Labels)
			case c.Length > 0 && utf8.RuneCountInString(s.value) > c.Length:
				f.fault(c, "is of the type %s, which is too short for %q (%s)", c.Type, s.value, s.what)
			}
		}
	}
}

var (
	null    = regexp.MustCompile(`^\(*NULL(::|\)|$)`)
	literal = regexp.MustCompile(`^\(*'((?:[^']|'')*)'(::|\)|$)`)
)

func (f *fitting) fault(c *TableColumn, format string, args ...any) {
	f.faults = append(f.faults, fmt.Errorf("column %q of table %s "+format, append([]any{c.Name, f.table.TableName()}, args...)...))
}

// Allowed reports every mark that a CHECK of the table, or of a column's domain, refuses: such rows could not be
// written as waiting, or not be marked. It asks the server, which evaluates the conditions over the marks alone. It
// also reports every column that may be NULL although rows are found by it, and a publication of the table by which
// rows without a key can't be marked. The error wraps ErrMapping if the mapping is the reason.
func (m *Mapping) Allowed(ctx context.Context, q schema.Querier, t *Table) error {
	f := fitting{table: t}
	mark := func(name, what string, values ...string) error {
		c := t.Column(name)
		if c == nil {
			return nil
		}
		for _, check := range c.Checks {
			allowed := false
			for _, v := range values {
				holds, err := check.holds(ctx, q, t, c, v)
				if err != nil {
					return fmt.Errorf("evaluate the checks of column %q of %s: %w", name, t.TableName(), err)
				}
				allowed = allowed || holds
			}
			if !allowed {
				f.fault(c, "can't be %s, which means %s: the condition %s refuses it", strings.Join(values, " or "), what, check.Condition)
			}
		}
		return nil
	}
	var errs []error
	switch m.Done.How {
	case DoneTimestamp:
		errs = append(errs, mark(m.Done.Column, "waiting", "NULL"), mark(m.Done.Column, "done", "now()"))
	case DoneBoolean:
		errs = append(errs, mark(m.Done.Column, "waiting", "false", "NULL"), mark(m.Done.Column, "done", "true"))
	case DoneStatus:
		for _, s := range m.statuses() {
			errs = append(errs, mark(m.Done.Column, s.what, schema.QuoteLiteral(s.value)))
		}
	}
	errs = append(errs, f.required(ctx, q, m.ID, "an id"))
	if c := t.Column(m.Order); c != nil && c.Kind == KindInteger {
		errs = append(errs, f.required(ctx, q, m.Order, "a place in the order"))
	}
	if m.Done.How == "" { // an offset moves over rows of a topic and partition, in the order of transactions
		errs = append(errs, f.required(ctx, q, m.Offsets.Topic, "a topic"), f.required(ctx, q, m.Offsets.Partition, "a partition"),
			f.required(ctx, q, m.Offsets.Transaction, "a transaction"))
	}
	errs = append(errs, mark(m.Done.Flag, "done", "true"), mark(m.Done.Flag, "not done", "false"))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return errors.Join(f.err(), m.identified(ctx, q, t))
}

// required notes a column by which rows are found, and that may be NULL.
func (f *fitting) required(ctx context.Context, q schema.Querier, name, what string) error {
	c := f.table.Column(name)
	if c == nil || c.NotNull {
		return nil
	}
	for _, check := range c.Checks {
		holds, err := check.holds(ctx, q, f.table, c, "NULL")
		if err != nil {
			return fmt.Errorf("evaluate the checks of column %q of %s: %w", name, f.table.TableName(), err)
		}
		if check.Valid && !holds {
			return nil
		}
	}
	f.fault(c, "may be NULL, and a row without %s would not be delivered: ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", what,
		f.table.TableName(), schema.QuoteIdentifier(c.Name))
	return nil
}

// beginner is a connection. A transaction of its own is none.
type beginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// asOwnerSQL makes a superuser the owner of a table until the transaction ends.
const asOwnerSQL = `SELECT pg_catalog.set_config('role', pg_catalog.pg_get_userbyid(c.relowner), true) FROM pg_catalog.pg_class c
	WHERE c.oid = $1 AND (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user)`

// holds evaluates a condition over one value. The condition can have functions of the application's: they run in a
// transaction that only reads, and with no more rights than the table's owner. What can't be evaluated so, holds.
func (k ColumnCheck) holds(ctx context.Context, q schema.Querier, t *Table, c *TableColumn, value string) (holds bool, err error) {
	if conn, ok := q.(beginner); ok {
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
		if err != nil {
			return false, err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		var role string
		if err := tx.QueryRow(ctx, asOwnerSQL, t.OID).Scan(&role); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return false, err
		}
		q = tx
	}
	err = q.QueryRow(ctx, fmt.Sprintf("SELECT (%s) IS NOT FALSE FROM (SELECT CAST(%s AS %s) AS %s) AS t",
		k.Condition, value, c.Base, schema.QuoteIdentifier(k.Name))).Scan(&holds)
	switch code := sqlstate.Of(err); {
	case err == nil || code == "":
		return holds, err
	case schema.IsDataError(err) || strings.HasPrefix(code, "P0"):
		return false, nil // the condition refuses it by an error
	case slices.Contains([]string{"08", "53", "57"}, code[:2]):
		return false, err // the server can't answer now
	}
	return true, nil
}
