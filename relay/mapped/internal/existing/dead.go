package existing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// ErrNoPlace is the error of a dead letter whose table has no place for it.
var ErrNoPlace = errors.New("a message can't be delivered, and its table has no place for dead letters: name a " +
	"dead-letter table or a status for failed rows in the mapping, or set the policy for such messages to block or " +
	"stop")

// rightsSQL lists the grants that this role lacks to keep dead letters: for the table $1 its columns $2 that are
// copied, and whether rows are deleted ($3); for the table for dead letters $4 its columns $5 that are filled.
const rightsSQL = `
SELECT concat_ws('; ',
	'GRANT SELECT (' || (SELECT string_agg(quote_ident(c), ', ') FROM unnest($2::text[]) c WHERE NOT has_column_privilege($1::text, c, 'SELECT')) || ') ON ' || $1,
	CASE WHEN $3::boolean AND NOT has_table_privilege($1::text, 'DELETE') THEN 'GRANT DELETE ON ' || $1 END,
	'GRANT INSERT (' || (SELECT string_agg(quote_ident(c), ', ') FROM unnest($5::text[]) c WHERE NOT has_column_privilege($4::text, c, 'INSERT')) || ') ON ' || $4,
	CASE WHEN NOT has_any_column_privilege($4::text, 'SELECT') THEN 'GRANT SELECT ON ' || $4 END)`

// rights notes which grants for dead letters the role lacks: the server's own error names no column.
func (t *Table) rights(ctx context.Context, conn *pgx.Conn, strategy string) error {
	copied, filled := []string{}, []string{}
	for _, c := range t.Dead.Columns {
		same := t.Info.Column(c.Name) != nil
		if same && strategy != mapping.Replication {
			copied = append(copied, c.Name)
		}
		if !c.Generated && (same || slices.Contains([]string{"reason", "error", "attempts", "dead_at"}, c.Name)) {
			filled = append(filled, c.Name)
		}
	}
	deletes := strategy != mapping.Replication && t.Mapping.Done.How != ""
	err := conn.QueryRow(ctx, rightsSQL, t.Name, copied, deletes, t.Dead.TableName().String(), filled).Scan(&t.lacks)
	if err != nil {
		return fmt.Errorf("look at the rights for dead letters: %w", Explain(err))
	}
	return nil
}

// notKept is in the error of KeptSQL.
const notKept = "the table for dead letters has not kept "

// KeptSQL is 0 if all rows of news are among those that an INSERT has returned, k. Otherwise it is an error of the
// server's, so that nothing of the statement's transaction remains: a trigger can drop a row without an error.
func (t *Table) KeptSQL(news string) string {
	return fmt.Sprintf("(SELECT CASE WHEN missing = 0 THEN 0 ELSE format('%s%%s', missing)::integer END "+
		"FROM (SELECT (SELECT count(*) FROM %s) - (SELECT count(*) FROM k) AS missing) kept)", notKept, news)
}

// NotDeadYet is the condition that the dead-letter table doesn't have the message yet: after a crash the message can be
// buried again. A message is recognized by all identifying columns and by its payload. If another message has the same
// id, the insert conflicts and fails: ids repeat, and an existing row is no reason to drop this one. value returns what
// goes into a column, "" for nothing.
func (t *Table) NotDeadYet(value func(name string) string) string {
	var same []string
	for _, name := range []string{t.Mapping.ID, t.Mapping.MessageID, t.Mapping.Payload} {
		c, v := t.Dead.Column(name), value(name)
		switch {
		case c == nil || v == "":
		case name == t.Mapping.ID:
			same = append(same, fmt.Sprintf("d.%s = (%s)::%s", schema.QuoteIdentifier(name), v, c.Type))
		default: // some types have no equality operator
			same = append(same, fmt.Sprintf("d.%s::text IS NOT DISTINCT FROM (%s)::%s::text", schema.QuoteIdentifier(name), v, c.Type))
		}
	}
	if same == nil {
		return "true"
	}
	return fmt.Sprintf("NOT EXISTS (SELECT FROM %s d WHERE %s)", t.Dead.TableName(), strings.Join(same, " AND "))
}

// ExplainDead is explain for a statement that keeps dead letters.
func (t *Table) ExplainDead(err error) error {
	switch code := sqlstate.Of(err); {
	case code == "42501" && t.lacks != "":
		return outbox.Permanent(fmt.Errorf("%w: a dead letter is copied to %s, and this role lacks a right for that: %s", err,
			t.Dead.TableName(), t.lacks))
	case code == "0A000", code == "22P02" && strings.Contains(err.Error(), notKept):
		return outbox.Permanent(fmt.Errorf("%w: table %s drops a row without an error, so the dead letter stays where it is: one of "+
			"its triggers returns NULL, or a rule rewrites the INSERT: have it let the row pass, or name another table in "+
			"failure.dead_table", err, t.Dead.TableName()))
	}
	return Explain(err)
}

// BurySQL inserts a row, as it came by the log, into the dead-letter table: it fills the columns of the same names, and
// overwrites those that describe the failure.
func (t *Table) BurySQL(conn *pgx.Conn, row *LogRow, dead *relay.Dead) (sql string, args []any) {
	outcome := map[string]any{"reason": string(dead.Reason),
		"error": schema.Note(conn, dead.Err), "attempts": fmt.Sprint(dead.Delivery.Attempts)}
	if name := t.Mapping.Failure.Error; name != "" {
		outcome[name] = outcome["error"]
	}
	if name := t.Mapping.Failure.Attempts; name != "" {
		outcome[name] = outcome["attempts"]
	}
	var names, values []string
	expressions := make(map[string]string)
	for _, c := range t.Dead.Columns {
		value, there := outcome[c.Name]
		if at, sent := row.layout.columns[c.Name]; sent && !there {
			value, there = nil, true
			if v := row.values[at]; !v.Null {
				value = string(v.Text)
			}
		}
		switch {
		case c.Generated:
		case c.Name == "dead_at":
			names, values = append(names, schema.QuoteIdentifier(c.Name)), append(values, "now()")
		case there:
			args = append(args, value)
			expressions[c.Name] = fmt.Sprintf("$%d::text::%s", len(args), c.Type)
			if was := row.layout.table.Info.Column(c.Name); c.Kind == mapping.KindBytes && was != nil && was.Kind != mapping.KindBytes {
				expressions[c.Name] = fmt.Sprintf("convert_to($%d::text, 'UTF8')::%s", len(args), c.Type) // the column was a text
			}
			names, values = append(names, schema.QuoteIdentifier(c.Name)), append(values, expressions[c.Name])
		}
	}
	return fmt.Sprintf("WITH n AS MATERIALIZED (SELECT WHERE %s), k AS (INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s "+
		"FROM n RETURNING 1) SELECT %s",
		t.NotDeadYet(func(name string) string { return expressions[name] }), t.Dead.TableName(), strings.Join(names, ", "),
		strings.Join(values, ", "), t.KeptSQL("n")), args
}
