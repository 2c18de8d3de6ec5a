package existing

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
	if t.layout, t.zone, err = t.look(ctx, conn); err != nil {
		return nil, err
	}
	return t, t.same(ctx, conn)
}

// same returns an error if the table was changed since its description was read: then the layout isn't that of the
// description.
func (t *Table) same(ctx context.Context, conn *pgx.Conn) error {
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
