package mapped

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/schema"
)

// Purge deletes delivered rows that are older than they are to be kept, a few at a time. Any number may run.
type Purge struct {
	source source
	keep   time.Duration
	every  time.Duration
	logger *slog.Logger
}

// purgeBatch is how many rows one statement deletes: few enough to hold nobody up.
const purgeBatch = 1000

// NewPurge returns a Purge of the delivered rows of a table that are older than keep. every is the pause
// between rounds. The mapping has to tell when a row was delivered.
func NewPurge(conn *pgx.ConnConfig, m schema.Mapping, keep, every time.Duration, logger *slog.Logger) (*Purge, error) {
	p := &Purge{keep: keep, every: every, logger: logger}
	if err := p.source.init(conn, m, Config{Name: "purge", Logger: logger}); err != nil {
		return nil, err
	}
	p.logger = p.source.cfg.Logger
	switch {
	case keep < 0 || every <= 0:
		return nil, fmt.Errorf("mapped: purge: rows are kept for %v and looked for every %v; the pause must be positive and the time not negative", keep, every)
	case m.Done.How == "" || m.Done.How == schema.DoneDelete:
		return nil, fmt.Errorf("mapped: purge: the mapping of table %q leaves no delivered row that could be known and deleted later", m.Table)
	case deliveredAt(&m) == "":
		return nil, fmt.Errorf("mapped: purge: the mapping of table %q names no column for the time at which a row was delivered", m.Table)
	}
	return p, nil
}

// deliveredAt is the column with the time at which a row was delivered.
func deliveredAt(m *schema.Mapping) string {
	if m.Done.At != "" {
		return m.Done.At
	}
	if m.Done.How == schema.DoneTimestamp {
		return m.Done.Column
	}
	return ""
}

// Run deletes until ctx ends. It returns an error that waiting can't cure; others are logged.
func (p *Purge) Run(ctx context.Context) error {
	for {
		n, err := p.Once(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case outbox.IsPermanent(err):
			return err
		case err != nil:
			p.logger.Warn("delivered rows could not be deleted", "table", p.source.mapping.Table, "error", err)
		case n > 0:
			p.logger.Debug("delivered rows deleted", "table", p.source.mapping.Table, "messages", n)
		}
		if pause(ctx, p.every) != nil {
			return nil
		}
	}
}

// Once deletes everything that is old enough and returns how many rows those were.
func (p *Purge) Once(ctx context.Context) (total int64, err error) {
	var conn *pgx.Conn
	t, _, err := p.source.open(ctx, &conn)
	if err != nil {
		return 0, err
	}
	defer hangUp(conn)
	sql := purgeSQL(t)
	for {
		tag, err := conn.Exec(ctx, sql, p.keep.Microseconds(), purgeBatch)
		if err != nil {
			return total, errors.Join(fmt.Errorf("delete delivered rows: %w", explain(err)))
		}
		total += tag.RowsAffected()
		if tag.RowsAffected() < purgeBatch {
			return total, nil
		}
	}
}

// purgeSQL deletes the oldest delivered rows. What somebody else deletes at the moment is left to them.
func purgeSQL(t *table) string {
	m := &t.mapping
	at := column(deliveredAt(m))
	var done string
	switch m.Done.How {
	case schema.DoneBoolean:
		done = column(m.Done.Column) + " AND "
	case schema.DoneStatus:
		done = column(m.Done.Column) + " = " + schema.QuoteLiteral(m.Done.Value) + " AND "
	}
	return fmt.Sprintf(`DELETE FROM %s WHERE %s IN (
	SELECT %s FROM %s m WHERE %s%s < now() - $1::bigint * interval '1 microsecond' ORDER BY %s LIMIT $2::bigint FOR UPDATE SKIP LOCKED)`,
		t.name, schema.QuoteIdentifier(m.ID), t.id, t.name, done, at, at)
}
