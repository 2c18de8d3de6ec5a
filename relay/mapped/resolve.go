package mapped

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// resolve compares a mapping with the catalogue.
func resolve(ctx context.Context, conn *pgx.Conn, m mapping.Mapping, strategy string) (*table, error) {
	if strategy == mapping.Replication {
		m.Done, m.Claim, m.Offsets = mapping.Done{}, mapping.Claim{}, mapping.Offsets{} // it marks nothing
	}
	info, err := readTable(ctx, conn, m.Table)
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
	t := &table{mapping: m, info: info, follows: new(atomic.Bool),
		name: info.TableName().String(), id: column(m.ID), idType: info.Column(m.ID).Type}
	if m.Failure.DeadTable != "" {
		t.dead, err = readTable(ctx, conn, m.Failure.DeadTable)
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
	tables := []string{t.name}
	if t.dead != nil {
		tables = append(tables, t.dead.TableName().String())
	}
	if err := seen(ctx, conn, tables...); err != nil {
		return nil, err
	}
	err = conn.QueryRow(ctx, "SELECT "+schema.MaySQL("controls", "SELECT")+", "+schema.MaySQL("brokers", "SELECT", "INSERT", "UPDATE")).
		Scan(&t.controlled, &t.recorded)
	if err != nil {
		return nil, fmt.Errorf("look for outbox.controls: %w", err)
	}
	t.waiting = m.Waiting()
	t.orderBy()
	t.selectLists()
	if t.layout, t.zone, err = t.look(ctx, conn); err != nil {
		return nil, err
	}
	return t, t.same(ctx, conn)
}

// same returns an error if the table was changed since its description was read: then the layout isn't that of the
// description.
func (t *table) same(ctx context.Context, conn *pgx.Conn) error {
	info, err := readTable(ctx, conn, t.mapping.Table)
	dead := t.dead
	if err == nil && dead != nil {
		dead, err = readTable(ctx, conn, t.mapping.Failure.DeadTable)
	}
	if err == nil && !(reflect.DeepEqual(info, t.info) && reflect.DeepEqual(dead, t.dead)) {
		err = t.errChanged()
	}
	return err
}
