package existing

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// Resolve compares a mapping with the catalogue.
func Resolve(ctx context.Context, conn *pgx.Conn, m mapping.Mapping, strategy string) (*Table, error) {
	if strategy == mapping.Replication {
		m.Done, m.Claim, m.Offsets = mapping.Done{}, mapping.Claim{}, mapping.Offsets{} // it marks nothing
	}
	info, err := ReadTable(ctx, conn, m.Table)
	if err == nil && strategy == mapping.Replication {
		err = permanentMapping(info.InLog())
	}
	if err == nil {
		err = permanentMapping(m.Fit(info))
	}
	if err == nil {
		err = permanentMapping(m.Allowed(ctx, conn, info))
	}
	if err != nil {
		return nil, err
	}
	t := &Table{Mapping: m, Info: info, Follows: new(atomic.Bool),
		Name: info.TableName().String(), ID: Column(m.ID), IDType: info.Column(m.ID).Type}
	if m.Failure.DeadTable != "" {
		t.Dead, err = ReadTable(ctx, conn, m.Failure.DeadTable)
		if errors.Is(err, mapping.ErrMapping) {
			err = outbox.Permanent(fmt.Errorf("the table of dead letters: %w; if it is missing, run: outbox migrate sources --apply", err))
		}
		if err != nil {
			return nil, err
		}
		if err := t.rights(ctx, conn, strategy); err != nil {
			return nil, err
		}
	}
	tables := []string{t.Name}
	if t.Dead != nil {
		tables = append(tables, t.Dead.TableName().String())
	}
	if err := RefuseHidden(ctx, conn, tables...); err != nil {
		return nil, err
	}
	err = conn.QueryRow(ctx, "SELECT "+schema.MaySQL("controls", "SELECT")+", "+schema.MaySQL("brokers", "SELECT", "INSERT", "UPDATE")).
		Scan(&t.Controlled, &t.Recorded)
	if err != nil {
		return nil, fmt.Errorf("look for outbox.controls: %w", err)
	}
	t.Waiting = m.Waiting()
	t.orderBy()
	t.selectLists()
	if t.layout, t.zone, err = t.readLayout(ctx, conn); err != nil {
		return nil, err
	}
	return t, t.checkDescription(ctx, conn)
}

// checkDescription returns an error if the table was changed since its description was read: then the layout isn't that
// of the description.
func (t *Table) checkDescription(ctx context.Context, conn *pgx.Conn) error {
	info, err := ReadTable(ctx, conn, t.Mapping.Table)
	dead := t.Dead
	if err == nil && dead != nil {
		dead, err = ReadTable(ctx, conn, t.Mapping.Failure.DeadTable)
	}
	if err == nil && !(reflect.DeepEqual(info, t.Info) && reflect.DeepEqual(dead, t.Dead)) {
		err = t.errChanged()
	}
	return err
}

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
