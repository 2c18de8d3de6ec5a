package schema

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Why rows that are there are not seen. No waiting cures either.
var (
	// ErrHidden means that row-level security hides rows from the role.
	ErrHidden = errors.New("row-level security hides rows")

	// ErrSegments means that a table isn't what the migrations made: a segment is detached, another is attached, or
	// a rule or a view stands in its place.
	ErrSegments = errors.New("the outbox's tables were changed")
)

// Intact checks that all rows of the outbox are where a relay looks for them, and that the role sees them. The error
// wraps ErrHidden or ErrSegments, and says what to run. The tables must exist.
func Intact(ctx context.Context, q Querier) error {
	var tables []string
	for _, p := range relayPrivileges() {
		if p.kind == onTable {
			tables = append(tables, p.object)
		}
	}
	if err := CheckVisible(ctx, q, tables...); err != nil {
		return err
	}
	rows, err := q.Query(ctx, alteredSQL, []string{OutboxMessages, InboxMessages}, segments, tables)
	var cures []string
	if err == nil {
		cures, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	switch {
	case err != nil:
		return fmt.Errorf("look at the segments: %w", err)
	case len(cures) > 0:
		return fmt.Errorf("%w: %s", ErrSegments, strings.Join(cures, "; "))
	}
	return nil
}

// alteredSQL lists what is not as the migrations made it, each with its cure. A segment that is being detached counts
// as detached: new snapshots don't see it.
const alteredSQL = `
WITH attached AS (
	SELECT i.inhparent, i.inhrelid, NOT i.inhdetachpending AS whole, pg_get_expr(c.relpartbound, c.oid) AS bound
	FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
	WHERE i.inhparent = ANY ($1::text[]::regclass[])
), wanted AS (
	SELECT p.parent, p.parent || '_' || n AS name, n AS segment FROM unnest($1::text[]) p (parent), generate_series(0, $2::integer - 1) n
)
SELECT CASE
	WHEN a.inhrelid IS NULL THEN format('segment %s is detached, and its messages are not seen: run: ALTER TABLE %s ATTACH PARTITION %s FOR VALUES IN (%s)',
		w.name, w.parent, w.name, w.segment)
	WHEN NOT a.whole THEN format('segment %s is being detached, and its messages are not seen: run: ALTER TABLE %s DETACH PARTITION %s FINALIZE, and then: ALTER TABLE %s ATTACH PARTITION %s FOR VALUES IN (%s)',
		w.name, w.parent, w.name, w.parent, w.name, w.segment)
	ELSE format('%s is attached to %s and is none of its segments; its messages may be older than what was delivered, and nothing empties it: run: ALTER TABLE %s DETACH PARTITION %s, and publish its rows anew',
		a.inhrelid::regclass, a.inhparent::regclass, a.inhparent::regclass, a.inhrelid::regclass)
END
FROM wanted w FULL JOIN attached a ON a.inhparent = w.parent::regclass AND a.inhrelid = to_regclass(w.name) AND a.bound = format('FOR VALUES IN (%L)', w.segment)
WHERE (w.name IS NOT NULL AND a.whole) IS NOT TRUE
UNION ALL
SELECT format('%s is no table but a view or the like: restore the table', o.name)
FROM unnest($3::text[]) o (name) JOIN pg_class c ON c.oid = o.name::regclass WHERE c.relkind NOT IN ('r', 'p')
UNION ALL
SELECT format('the rule %I changes what statements on %s do: run: DROP RULE %I ON %s', r.rulename, o.name, r.rulename, o.name)
FROM unnest($3::text[]) o (name) JOIN pg_class c ON c.oid = o.name::regclass JOIN pg_rewrite r ON r.ev_class = c.oid WHERE c.relkind IN ('r', 'p')`

// AttachedSQL is an expression whose value changes whenever a segment of outbox.messages is attached or detached, even
// if all is as before afterwards: the rows of the catalogue are new ones then.
const AttachedSQL = `(SELECT string_agg(i.inhrelid::text || ' ' || i.xmin::text, ',' ORDER BY i.inhrelid) FROM pg_inherits i
	WHERE i.inhparent = 'outbox.messages'::regclass)`

// CheckVisible returns ErrHidden, with the cure, if a policy hides rows of one of the tables from the role. The tables
// must exist; their names are quoted where necessary.
func CheckVisible(ctx context.Context, q Querier, tables ...string) error {
	rows, err := q.Query(ctx, `SELECT t.name, current_user::text FROM unnest($1::text[]) t (name) WHERE row_security_active(t.name::regclass)`, tables)
	var role string
	var hidden []string
	if err == nil {
		var name string
		_, err = pgx.ForEachRow(rows, []any{&name, &role}, func() error {
			hidden = append(hidden, name)
			return nil
		})
	}
	switch {
	case err != nil:
		return fmt.Errorf("look for row-level security: %w", err)
	case len(hidden) == 0:
		return nil
	}
	var cures strings.Builder
	for _, name := range hidden {
		fmt.Fprintf(&cures, "ALTER TABLE %s DISABLE ROW LEVEL SECURITY; ", name)
	}
	return fmt.Errorf("%w of %s from %q, which would be lost: as the tables' owner run: %sor, as a superuser: ALTER ROLE %s BYPASSRLS",
		ErrHidden, strings.Join(hidden, ", "), role, &cures, pgx.Identifier{role}.Sanitize())
}

// ExplainHidden adds ErrHidden and the cure to the error of a statement that PostgreSQL refused because a policy would
// have hidden rows (row_security is off). Other errors come back as they are.
func ExplainHidden(err error) error {
	var pgErr *pgconn.PgError
	// The code is that of any missing right, and the text is in the server's language.
	if !errors.As(err, &pgErr) || pgErr.Code != "42501" || pgErr.Routine != "check_enable_rls" {
		return err
	}
	return fmt.Errorf("%w: as the table's owner run: ALTER TABLE … DISABLE ROW LEVEL SECURITY, or, as a superuser, "+
		"ALTER ROLE … BYPASSRLS for this role: %w", ErrHidden, err)
}

// The indexes that the migrations make, besides those of constraints.
var madeIndex = regexp.MustCompile(`(?m)^CREATE (?:UNIQUE )?INDEX (\w+) ON [^;]*`)

// Unindexed lists the statements that make the indexes of the outbox which are missing or not valid, as after a CREATE
// INDEX CONCURRENTLY that failed. A relay works without them, and reads whole tables.
func Unindexed(ctx context.Context, q Querier) ([]string, error) {
	var names []string
	statements := map[string]string{}
	for _, m := range Migrations() {
		for _, found := range madeIndex.FindAllStringSubmatch(m.SQL, -1) {
			names = append(names, found[1])
			statements[found[1]] = strings.Join(strings.Fields(found[0]), " ")
		}
	}
	rows, err := q.Query(ctx, `
		SELECT n.name, coalesce(i.indisvalid, true)
		FROM unnest($1::text[]) WITH ORDINALITY AS n (name, place)
		LEFT JOIN pg_class c ON c.relname = n.name AND c.relnamespace = 'outbox'::regnamespace
		LEFT JOIN pg_index i ON i.indexrelid = c.oid
		WHERE i.indisvalid IS NOT TRUE ORDER BY n.place`, names)
	var missing []string
	var name string
	var none bool
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&name, &none}, func() error {
			statement := statements[name]
			if !none {
				statement = "DROP INDEX outbox." + name + "; " + statement
			}
			missing = append(missing, statement)
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("look for the indexes: %w", err)
	}
	return missing, nil
}
