package mapping

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/schema"
)

// keylessSQL finds publications of tables ($1), or of their partitions, whose rows have no key there. PostgreSQL then
// refuses every UPDATE ($2) or DELETE ($3) of a row. A primary key that is checked late is none for it.
const keylessSQL = `
WITH asked AS (SELECT to_regclass(name)::oid AS oid FROM unnest($1::text[]) name)
SELECT l.oid::regclass::text, p.pubname::text, p.puballtables, k.has
FROM (SELECT oid FROM asked UNION SELECT t.relid FROM asked, pg_partition_tree(asked.oid) t WHERE t.isleaf) l (oid)
JOIN pg_class c ON c.oid = l.oid CROSS JOIN pg_publication p JOIN pg_publication_tables t USING (pubname)
CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = l.oid AND i.indisprimary AND i.indimmediate)) k (has)
WHERE c.relkind = 'r' AND ($2::boolean AND p.pubupdate OR $3::boolean AND p.pubdelete)
	AND to_regclass(format('%I.%I', t.schemaname, t.tablename)) IN (SELECT l.oid UNION SELECT relid FROM pg_partition_ancestors(l.oid))
	AND CASE c.relreplident WHEN 'f' THEN false WHEN 'd' THEN NOT k.has
		ELSE NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = l.oid AND i.indisreplident) END
ORDER BY 1, 2`

// Keyless is a table in a publication that has no key for its rows.
type Keyless struct {
	Table       string // as SQL has it
	Publication string
	All         bool // the publication is FOR ALL TABLES
	PrimaryKey  bool // the table has one, which its replica identity leaves aside
}

// Repair is the statement that gives the rows a key.
func (k *Keyless) Repair() string {
	if k.PrimaryKey {
		return "ALTER TABLE " + k.Table + " REPLICA IDENTITY DEFAULT"
	}
	return "ALTER TABLE " + k.Table + " REPLICA IDENTITY FULL"
}

// FindKeyless returns which of the tables, named as in SQL, are in a publication by which updates or deletes of them
// fail. Tables that aren't there are left out.
func FindKeyless(ctx context.Context, q schema.Querier, tables []string, updates, deletes bool) ([]Keyless, error) {
	rows, err := q.Query(ctx, keylessSQL, tables, updates, deletes)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Keyless])
}

// identified reports a publication by which the marks of m can't be written. The error wraps ErrMapping.
func (m *Mapping) identified(ctx context.Context, q schema.Querier, t *Table) error {
	marked := m.Done.How != ""
	deletes := m.Done.How == DoneDelete || marked && m.Failure.DeadTable != ""
	updates := marked && m.Done.How != DoneDelete
	for _, column := range []string{m.Claim.Until, m.Claim.Since, m.Claim.Owner,
		m.Failure.Attempts, m.Failure.Error, m.Failure.LastAttempt, m.Failure.NextAttempt} {
		updates = updates || marked && column != ""
	}
	found, err := FindKeyless(ctx, q, []string{t.TableName().String()}, updates, deletes)
	switch {
	case err != nil:
		return fmt.Errorf("look for publications of %s: %w", t.TableName(), err)
	case len(found) == 0:
		return nil
	}
	k := found[0]
	repair := "run: " + k.Repair()
	if !k.PrimaryKey {
		repair = "add a primary key that isn't DEFERRABLE, or " + repair
	}
	return fmt.Errorf("%w: publication %q has %s, whose rows have no key, so PostgreSQL refuses to mark or delete them: %s",
		ErrMapping, k.Publication, k.Table, repair)
}
