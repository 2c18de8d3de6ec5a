package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// DeadRow is a dead letter of a destination that reads a table of its own.
type DeadRow struct {
	Table     string    `json:"table"` // that has it
	ID        string    `json:"id"`
	MessageID string    `json:"message_id,omitempty"` // of its column, if the mapping names one
	EventType string    `json:"event_type,omitempty"` // likewise
	Attempts  int64     `json:"attempts,omitempty"`
	Error     string    `json:"error,omitempty"`
	DeadAt    time.Time `json:"dead_at,omitzero"`
}

// RowSelection names dead letters of a destination that reads a table of its own, or rows that are blocked: all, or
// those with the ids.
type RowSelection struct {
	Destination string   `json:"destination"`
	Blocked     bool     `json:"blocked,omitempty"` // rows that keep their keys waiting, instead of dead letters
	IDs         []string `json:"ids,omitempty"`     // as the column of the id has them
	Max         int64    `json:"-"`                 // more are an ErrTooMany; 0: any number
}

// RowOutcome is the result of a verb on rows of a table.
type RowOutcome struct {
	Destination string `json:"destination"`
	Table       string `json:"table"`
	Rows        int64  `json:"rows"`
}

// DeadRowTable says where the dead letters of a destination's own table are, or its blocked rows: in the table itself,
// by a status, or in a table for them.
type DeadRowTable struct {
	mapping.Mapping
	strategy string
	table    *mapping.Table // the destination's
	In       *mapping.Table // where the dead letters are
	Where    string         // the condition for a row m of it
}

// readDeadRows returns where a destination's dead letters or blocked rows are.
func readDeadRows(ctx context.Context, tx pgx.Tx, destination string, blocked bool) (*DeadRowTable, error) {
	var strategy string
	var m mapping.Mapping
	err := tx.QueryRow(ctx, `SELECT strategy, mapping FROM outbox.tables WHERE destination = $1 ORDER BY updated_at DESC LIMIT 1`,
		destination).Scan(&strategy, &m)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("%w: no relay has read a table of its own for destination %s: look at outbox status, and at outbox dead ls",
			admin.ErrNotFound, destination)
	}
	if err != nil {
		return nil, err
	}
	return DeadRowsOf(ctx, tx, strategy, m, blocked)
}

// DeadRowsOf returns where a mapping keeps dead letters or blocked rows.
func DeadRowsOf(ctx context.Context, tx pgx.Tx, strategy string, m mapping.Mapping, blocked bool) (d *DeadRowTable, err error) {
	d = &DeadRowTable{strategy: strategy, Mapping: m}
	switch {
	case blocked && d.Mapping.Blocked() == "":
		return nil, fmt.Errorf("%w: the mapping of table %s has no column for the time of the next attempt, so the relay alone knows "+
			"which rows are blocked: outbox status has their number and the last error, and the relay tries them again when "+
			"it is started again", admin.ErrNotFound, d.Table)
	case !blocked && !d.Failure.Place():
		return nil, fmt.Errorf("%w: the mapping of table %s has no place for dead letters", admin.ErrNotFound, d.Table)
	}
	if d.table, err = readTable(ctx, tx, d.Table); err != nil {
		return nil, err
	}
	d.In, d.Where = d.table, "true"
	switch {
	case blocked:
		d.Where = d.Mapping.Blocked()
	case d.Failure.DeadTable != "":
		d.In, err = readTable(ctx, tx, d.Failure.DeadTable)
	default:
		d.Where = fmt.Sprintf("m.%s = %s", schema.QuoteIdentifier(d.Done.Column), schema.QuoteLiteral(d.Failure.FailedValue))
	}
	return d, err
}

func readTable(ctx context.Context, tx pgx.Tx, name string) (*mapping.Table, error) {
	parsed, err := mapping.ParseTableName(name)
	if err != nil {
		return nil, err
	}
	return mapping.ReadTable(ctx, tx, parsed)
}

// value is the first of the columns that the dead letters have, cast to a type; NULL if they have none.
func (d *DeadRowTable) value(kind string, columns ...string) string {
	for _, name := range columns {
		if name != "" && d.In.Column(name) != nil {
			return fmt.Sprintf("m.%s::%s", schema.QuoteIdentifier(name), kind)
		}
	}
	return "NULL::" + kind
}

// AtSQL is when a row died, as an expression. The columns of a table for dead letters come first; a table with a status
// has only those of the mapping.
func (d *DeadRowTable) AtSQL() string {
	return d.value("timestamptz", d.deadTableColumn("dead_at"), d.Failure.LastAttempt, d.Done.UpdatedAt)
}

// ErrorSQL is the reason why a row died, as an expression.
func (d *DeadRowTable) ErrorSQL() string {
	return d.value("text", d.deadTableColumn("error"), d.Failure.Error)
}

func (d *DeadRowTable) attempts() string {
	return d.value("bigint", d.deadTableColumn("attempts"), d.Failure.Attempts)
}

// deadTableColumn returns a column that only a table for dead letters has under its name.
func (d *DeadRowTable) deadTableColumn(column string) string {
	if d.In == d.table {
		return ""
	}
	return column
}

// selected returns the condition for the rows of s. Its argument, if there is one, is $1.
func (d *DeadRowTable) selected(s RowSelection) (where string, args []any, err error) {
	if len(s.IDs) == 0 {
		return d.Where, nil, nil
	}
	id := d.In.Column(d.ID)
	if id == nil {
		return "", nil, fmt.Errorf("table %s has no column %s, so its rows can't be told apart: say all", d.In.TableName(), d.ID)
	}
	return fmt.Sprintf("%s AND m.%s = ANY ($1::text[]::%s[])", d.Where, schema.QuoteIdentifier(d.ID), id.Type), []any{s.IDs}, nil
}

// DeadRows lists the dead letters that s names, or blocked rows, the newest first, at most limit (default 100, at most
// 1000).
func DeadRows(ctx context.Context, db admin.DB, s RowSelection, limit int) (list []DeadRow, err error) {
	err = admin.Read(ctx, db, func(tx pgx.Tx) error {
		d, err := readDeadRows(ctx, tx, s.Destination, s.Blocked)
		if err != nil {
			return err
		}
		where, args, err := d.selected(s)
		if err != nil {
			return err
		}
		text := func(columns ...string) string {
			return admin.Readable("coalesce(" + d.value("text", columns...) + ", '')")
		}
		rows, err := tx.Query(ctx, fmt.Sprintf(`SELECT %s::text, %s, %s, %s, coalesce(%s, 0), %s, %s AS at FROM %s m WHERE %s
			ORDER BY at DESC NULLS LAST, 2 LIMIT %d`,
			schema.QuoteLiteral(d.In.TableName().String()), text(d.ID), text(d.MessageID), text(d.EventType), d.attempts(),
			admin.Readable("coalesce("+d.ErrorSQL()+", '')"), d.AtSQL(), d.In.TableName(), where, admin.PageSize(limit)), args...)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r DeadRow, err error) {
			var at *time.Time
			err = row.Scan(&r.Table, &r.ID, &r.MessageID, &r.EventType, &r.Attempts, &r.Error, &at)
			r.DeadAt = admin.Value(at)
			return r, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list dead letters of a table: %w", err)
	}
	return list, nil
}

// RequeueRows has dead letters of a table delivered once more. A row with a status waits again; a row in a table for
// dead letters goes back to the one it came from, with its id. If the row that it is a copy of may be there still, as
// with the strategies that change no row, it gets a new id. No attempt is counted. What was delivered after a dead
// letter of the same key stays delivered.
//
// It is one transaction. It needs the rights of the relay, and INSERT on the table for rows that go back.
func RequeueRows(ctx context.Context, db admin.DB, s RowSelection, action admin.Action) (RowOutcome, error) {
	return actOnRows(ctx, db, "requeue_rows", s, action, func(tx pgx.Tx, d *DeadRowTable, where string, args []any,
		before int64) (int64, error) {
		sql, err := d.requeueSQL(where)
		if err != nil {
			return 0, err
		}
		tag, err := tx.Exec(ctx, sql, args...)
		if err != nil || s.Blocked {
			return tag.RowsAffected(), err
		}
		var left int64
		if err := tx.QueryRow(ctx, fmt.Sprintf("SELECT count(*) FROM %s m WHERE %s", d.In.TableName(), where),
			args...).Scan(&left); err != nil {
			return 0, err
		}
		if gone := before - left; gone > tag.RowsAffected() {
			return 0, fmt.Errorf("table %s has taken %d of %d rows, so none is moved: one of its triggers drops rows without an error",
				d.table.TableName(), tag.RowsAffected(), gone)
		}
		// Those that were acknowledged may be among them.
		_, err = tx.Exec(ctx, fmt.Sprintf(`UPDATE outbox.tables_acknowledged SET messages = least(messages, (SELECT count(*) FROM %s m WHERE %s))
			WHERE destination = $1`, d.In.TableName(), d.Where), s.Destination)
		return tag.RowsAffected(), err
	})
}

// AcknowledgeRows notes that the actor knows of the dead letters that a table has now: the verdict names those that
// come to them. They are known by their number alone, so it is always all of them; if most is positive, more than that
// are an ErrTooMany.
func AcknowledgeRows(ctx context.Context, db admin.DB, destination string, most int64, action admin.Action) (RowOutcome, error) {
	return actOnRows(ctx, db, "acknowledge_rows", RowSelection{Destination: destination, Max: most}, action,
		func(tx pgx.Tx, d *DeadRowTable, where string, _ []any, _ int64) (n int64, err error) {
			err = tx.QueryRow(ctx, fmt.Sprintf(`INSERT INTO outbox.tables_acknowledged (destination, messages) SELECT $1, count(*) FROM %s m WHERE %s
				ON CONFLICT (destination) DO UPDATE SET messages = excluded.messages, acknowledged_at = excluded.acknowledged_at RETURNING messages`,
				d.In.TableName(), where), destination).Scan(&n)
			return n, err
		})
}

// actOnRows counts what s names, and runs act on it, which gets that number and returns how many rows it has changed.
func actOnRows(ctx context.Context, db admin.DB, verb string, s RowSelection, action admin.Action,
	act func(tx pgx.Tx, d *DeadRowTable, where string, args []any, before int64) (int64, error)) (out RowOutcome, err error) {
	err = admin.Write(ctx, db, action, func(tx pgx.Tx) error {
		d, err := readDeadRows(ctx, tx, s.Destination, s.Blocked)
		if err != nil {
			return err
		}
		where, args, err := d.selected(s)
		if err != nil {
			return err
		}
		out = RowOutcome{Destination: s.Destination, Table: d.In.TableName().String()}
		if err := tx.QueryRow(ctx, fmt.Sprintf(`SELECT count(*) FROM %s m WHERE %s`, d.In.TableName(), where), args...).Scan(&out.Rows); err != nil {
			return err
		}
		switch {
		case out.Rows == 0 && len(s.IDs) > 0:
			return fmt.Errorf("%w: none of them has such an id: outbox tables dead %s lists them",
				admin.ErrNotFound, shell.Word(s.Destination))
		case s.Max > 0 && out.Rows > s.Max:
			return tooMany(out.Rows, s.Max)
		case out.Rows == 0 || action.DryRun:
			return nil
		}
		if out.Rows, err = act(tx, d, where, args, out.Rows); err != nil {
			return err
		}
		return admin.Record(ctx, tx, action, verb, s.Destination, map[string]any{"table": out.Table, "selection": s, "rows": out.Rows})
	})
	if err != nil {
		return RowOutcome{}, fmt.Errorf("%s: %w", strings.ReplaceAll(verb, "_", " "), err)
	}
	return out, nil
}

// requeueSQL sends the rows m of a condition once more.
func (d *DeadRowTable) requeueSQL(where string) (string, error) {
	set := d.SetUntried(d.table)
	if d.Done.How == mapping.DoneStatus && (d.In == d.table || d.Claim.Status != "") {
		set.Set(d.Done.Column, schema.QuoteLiteral(d.Done.Waiting))
	}
	if d.In == d.table {
		return fmt.Sprintf("UPDATE %s m SET %s WHERE %s", d.table.TableName(), set, where), nil
	}
	copies := slices.Contains([]string{mapping.XMin, mapping.Serial, mapping.Replication}, d.strategy)
	order := ""
	if d.In.Column(d.ID) != nil {
		order = " ORDER BY g." + schema.QuoteIdentifier(d.ID)
	}
	var names, values []string
	for _, c := range d.table.Columns {
		drawn := c.Name == d.ID && (c.Sequence != 0 || c.Default != "") || c.Name == d.Offsets.Transaction
		from := d.In.Column(c.Name)
		value := set.Value(c.Name)
		switch {
		case c.Generated || copies && drawn || value == "" && from == nil:
			continue
		case value == "" && from.Type != c.Type:
			value = fmt.Sprintf("g.%s::%s", schema.QuoteIdentifier(c.Name), c.Type)
		case value == "":
			value = "g." + schema.QuoteIdentifier(c.Name)
		}
		names, values = append(names, schema.QuoteIdentifier(c.Name)), append(values, value)
	}
	if len(names) == 0 {
		return "", fmt.Errorf("tables %s and %s have no column in common", d.In.TableName(), d.table.TableName())
	}
	return fmt.Sprintf("WITH g AS (DELETE FROM %s m WHERE %s RETURNING m.*) INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM g%s",
		d.In.TableName(), where, d.table.TableName(), strings.Join(names, ", "), strings.Join(values, ", "), order), nil
}
