package mapping

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/schema"
)

// keylessSQL finds a publication of a table, or of one of its partitions, whose rows have no key there. PostgreSQL then
// refuses every UPDATE ($2) or DELETE ($3) of a row.
const keylessSQL = `
SELECT l.oid::regclass::text, p.pubname::text
FROM (SELECT $1::regclass::oid UNION SELECT relid FROM pg_partition_tree($1::regclass) WHERE isleaf) l (oid)
JOIN pg_class c ON c.oid = l.oid CROSS JOIN pg_publication p JOIN pg_publication_tables t USING (pubname)
WHERE c.relkind = 'r' AND ($2::boolean AND p.pubupdate OR $3::boolean AND p.pubdelete)
	AND to_regclass(format('%I.%I', t.schemaname, t.tablename)) IN (SELECT l.oid UNION SELECT relid FROM pg_partition_ancestors(l.oid))
	AND CASE c.relreplident WHEN 'f' THEN false
		WHEN 'd' THEN NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = l.oid AND i.indisprimary)
		ELSE NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = l.oid AND i.indisreplident) END
ORDER BY 1, 2 LIMIT 1`

// identified reports a publication by which the marks of m can't be written. The error wraps ErrMapping.
func (m *Mapping) identified(ctx context.Context, q schema.Querier, t *Table) error {
	deletes := m.Done.How == DoneDelete
	updates := m.Done.How != "" && !deletes || m.Failure.Attempts != ""
	var table, publication string
	err := q.QueryRow(ctx, keylessSQL, t.TableName().String(), updates, deletes).Scan(&table, &publication)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look for publications of %s: %w", t.TableName(), err)
	}
	return fmt.Errorf("%w: publication %q has %s, whose rows have no key, so PostgreSQL refuses to mark or delete them: add a primary "+
		"key, or run: ALTER TABLE %s REPLICA IDENTITY FULL", ErrMapping, publication, table, table)
}
