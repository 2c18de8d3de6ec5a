package existing

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
)

// otherSettingsSQL lists the settings that a relay can't do without and that have other values than package dial gives
// them: by those a value would have another text, a statement another meaning, or a commit wait for nothing. $1: a
// column of the mapping is a money.
const otherSettingsSQL = `SELECT coalesce(pg_catalog.string_agg(w.name || ' is ' || s.value || ', not ' || w.good, '; ' ORDER BY w.name), '')
FROM (VALUES ('client_encoding', 'UTF8', '^UTF8$'), ('standard_conforming_strings', 'on', '^on$'), ('datestyle', 'ISO', '^ISO'),
	('quote_all_identifiers', 'off', '^off$'),
	('intervalstyle', 'postgres', '^postgres$'), ('bytea_output', 'hex', '^hex$'), ('extra_float_digits', '1', '^[1-3]$'),
	('default_transaction_isolation', 'read committed', '^read committed$'), ('default_transaction_read_only', 'off', '^off$'),
	('synchronous_commit', 'on', '^(on|remote_apply|remote_write)$'), ('lc_monetary', 'C', CASE WHEN $1::boolean THEN '^(C|POSIX)$' ELSE '' END)
) w (name, good, pattern), LATERAL pg_catalog.current_setting(w.name) s (value) WHERE s.value !~ w.pattern`

// RefuseSettings refuses the settings that a session behind a pooler in transaction mode has, if they matter. The relay
// can't set them there: they would be other clients' too.
func (t *Table) RefuseSettings(ctx context.Context, conn *pgx.Conn) error {
	money := slices.ContainsFunc(t.Mapping.Columns(), func(name string) bool {
		c := t.Info.Column(name)
		return c != nil && c.Base == "money"
	})
	var others string
	if err := conn.QueryRow(ctx, otherSettingsSQL, money).Scan(&others); err != nil {
		return fmt.Errorf("look at the settings behind the pooler: %w", Explain(err))
	}
	if others == "" {
		return nil
	}
	return outbox.Permanent(fmt.Errorf("%w, where a relay can't set what it relies on, and %s: give the relay's role these settings "+
		"(ALTER ROLE … SET …) and have the pooler connect again, or connect to PostgreSQL itself, or to a pool in session mode",
		dial.ErrTransactionPooler, others))
}
