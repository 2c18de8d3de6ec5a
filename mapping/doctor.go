package mapping

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgoutbox/outbox/schema"
)

// ErrNotFound means that there is no table of messages with the name that Doctor was given.
var ErrNotFound = errors.New("not found")

// Doctor reads what the catalogue knows about a table and proposes how a relay should deliver from it. It changes
// nothing and reads no row of the table. If the table doesn't exist, or is a table of offsets, the error is
// ErrNotFound.
func Doctor(ctx context.Context, q schema.Querier, table string) (*Report, error) {
	name, err := ParseTableName(table)
	if err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	t, err := ReadTable(ctx, q, name)
	if err != nil {
		return nil, fmt.Errorf("doctor: %w: %w", ErrNotFound, err)
	}
	if t.Column("last_processed_id") != nil && t.Column("available_after") != nil {
		return nil, fmt.Errorf("doctor: %w: %s has the offsets of strategy xmin or serial, and no messages; name the "+
			"table that it has the offsets of, for example outbox_messages", ErrNotFound, t.TableName())
	}
	r := &Report{Table: t.TableName().String()}
	r.propose(t, table)
	if err := r.Mapping.Allowed(ctx, q, t); errors.Is(err, ErrMapping) {
		r.Faults = append(r.Faults, err.Error())
	} else if err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	offsets := func() bool {
		o, err := ParseTableName(r.Mapping.Offsets.Table)
		if err != nil {
			return false
		}
		_, err = ReadTable(ctx, q, o)
		return err == nil
	}
	r.examine(t, offsets)
	if r.Notify, err = byNotification(ctx, q, t); err != nil {
		return nil, fmt.Errorf("doctor: look for triggers: %w", err)
	}
	if r.Log, err = byLog(ctx, q, t, &r.Mapping); err != nil {
		return nil, fmt.Errorf("doctor: look for what the log needs: %w", err)
	}
	return r, nil
}

// propose finds the preset that fits, or else guesses from the names of columns. It never guesses that rows may be
// deleted.
func (r *Report) propose(t *Table, named string) {
	for _, p := range Presets() {
		m := p.Mapping
		m.Table = named
		if m.Done.How == DoneDelete && !m.CalledOutbox() {
			continue // its rows may not be messages
		}
		if m.Fit(t) == nil && explains(&m, t) {
			r.Preset, r.Strategy, r.Mapping = p.Name, p.Strategy, m
			return
		}
	}
	r.Mapping = guess(t, named)
	if err := r.Mapping.Validate(); err != nil {
		r.Faults = append(r.Faults, err.Error())
	}
	if err := r.Mapping.Fit(t); err != nil {
		r.Faults = append(r.Faults, err.Error())
	}
	m := &r.Mapping
	if m.Done.How == "" && m.Offsets.Transaction == "" {
		r.Faults = append(r.Faults, "no column says that a row was delivered. If the rows are messages: add one "+
			"(published_at timestamptz, NULL until then) and name it in done, or, if they are nothing else, have "+
			"delivered rows deleted by done: {how: delete} and rows_may_be_deleted: true")
	}
	switch {
	case m.Offsets.Transaction != "" && m.Done.How == "":
		r.Strategy = XMin
	case m.Claim.Until != "" || m.Claim.Status != "":
		r.Strategy = Lease
	case m.Done.How != "":
		r.Strategy = Advisory
	}
}

// explains reports whether a mapping leaves out no column that must have a purpose: one that marks a row as done or
// claimed, or has its partition.
func explains(m *Mapping, t *Table) bool {
	g := guess(t, m.Table)
	return (g.Done.How == "" || m.Done.How == DoneStatus || m.Done.How == g.Done.How) &&
		(g.Offsets.Transaction == "" || m.Offsets.Transaction == g.Offsets.Transaction) &&
		(g.Claim.Until == "" || m.Claim.Until == g.Claim.Until)
}
