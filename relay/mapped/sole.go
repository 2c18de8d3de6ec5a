package mapped

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/schema"
)

// othersSQL lists the mappings of other destinations ($1) whose relays live and mark rows. One that waits, as two do
// that start together, counts if its name comes first.
const othersSQL = `
SELECT t.destination, t.strategy, t.mapping::text FROM outbox.tables t
WHERE t.destination <> $1 AND t.strategy NOT IN ('xmin', 'serial', 'replication') AND t.state NOT IN ('broken', 'stopped')
	AND (t.state <> 'waiting' OR t.destination < $1)
	AND t.session IN (SELECT a.application_name FROM pg_catalog.pg_stat_activity a WHERE a.datname = current_database())`

// sole refuses a table whose rows a live relay of another destination marks: each row is marked once, so some would
// reach the one destination alone, and some the other. Names are compared by the table that they mean.
func (s *Source) sole(ctx context.Context, conn *pgx.Conn, t *existing.Table) error {
	if s.cfg.Destination == "" || t.Mapping.Done.How == "" {
		return nil
	}
	var readable bool
	err := conn.QueryRow(ctx, "SELECT "+schema.MaySQL("tables", "SELECT")).Scan(&readable)
	if err != nil || !readable {
		return err
	}
	type other struct{ Destination, Strategy, Mapping string }
	rows, err := conn.Query(ctx, othersSQL, s.cfg.Destination)
	if err != nil {
		return fmt.Errorf("look for other destinations of the table: %w", err)
	}
	others, err := pgx.CollectRows(rows, pgx.RowToStructByPos[other])
	if err != nil {
		return fmt.Errorf("look for other destinations of the table: %w", err)
	}
	for _, o := range others {
		var m mapping.Mapping
		if err := json.Unmarshal([]byte(o.Mapping), &m); err != nil {
			continue // another version has written it
		}
		name, err := mapping.ParseTableName(m.Table)
		if err != nil {
			continue
		}
		var same bool
		if err := conn.QueryRow(ctx, "SELECT coalesce(to_regclass($1)::oid = $2::oid, false)",
			name.String(), t.Info.OID).Scan(&same); err != nil {
			return fmt.Errorf("look for other destinations of the table: %w", err)
		}
		if same {
			return outbox.Permanent(fmt.Errorf("a relay of destination %s (strategy %s) marks the rows of table %s too, and a row is "+
				"marked once, so each message would reach one of the destinations: stop that relay, or give each destination a table "+
				"of its own, "+
				"or a strategy that marks no row (serial, xmin, replication)", o.Destination, o.Strategy, t.Name))
		}
	}
	return nil
}
