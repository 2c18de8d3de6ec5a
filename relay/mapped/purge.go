package mapped

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/schema"
)

// Purge deletes delivered rows that are older than they are to be kept, or moves them to an archive, in small batches.
// Any number may run.
type Purge struct {
	source Source
	cfg    PurgeConfig
}

// PurgeConfig configures a Purge.
type PurgeConfig struct {
	Keep  time.Duration // the age at which delivered rows are deleted
	Every time.Duration // pause between rounds

	// Archive is a table that rows are moved to. It must have all columns of the table, by their names. The transaction
	// that inserts a row there also deletes it here. Empty: rows are deleted.
	Archive string

	Logger *slog.Logger // nil: slog.Default
}

// purgeBatch is how many rows one statement deletes: few enough that no other transaction waits long.
const purgeBatch = 1000

// NewPurge returns a Purge of the delivered rows of a table. The mapping must have a column with the time of delivery.
func NewPurge(conn *pgx.ConnConfig, m mapping.Mapping, cfg PurgeConfig) (*Purge, error) {
	p := &Purge{cfg: cfg}
	if err := p.source.init(conn, m, Config{Name: "purge", Logger: cfg.Logger}); err != nil {
		return nil, err
	}
	p.cfg.Logger = p.source.cfg.Logger
	if err := cfg.Check(m); err != nil {
		return nil, fmt.Errorf("mapped: purge: %w", err)
	}
	return p, nil
}

// Check reports all faults together, including what the mapping lacks for a purge.
func (cfg PurgeConfig) Check(m mapping.Mapping) error {
	var faults settings.Faults
	faults.Need(cfg.Keep >= 0, "Keep", "%v, it must not be negative", cfg.Keep)
	faults.Need(cfg.Every > 0, "Every", "%v, it must be positive", cfg.Every)
	faults.Need(m.RowsMayBeDeleted, "RowsMayBeDeleted",
		"not given, but rows of table %q are to be deleted: if they are messages and nothing else, say so (rows_may_be_deleted: true)",
		m.Table)
	marked := m.Done.How != "" && m.Done.How != mapping.DoneDelete
	faults.Need(marked, "", "the mapping of table %q leaves no row that is marked as delivered and could be deleted later", m.Table)
	faults.Need(!marked || deliveredAt(&m) != "", "",
		"the mapping of table %q names no column for the time at which a row was delivered", m.Table)
	if cfg.Archive != "" {
		_, err := mapping.ParseTableName(cfg.Archive)
		faults.Add("Archive", err)
		faults.Need(cfg.Archive != m.Table, "Archive", "%s is the table itself", m.Table)
	}
	return faults.Err()
}

// deliveredAt is the column with the time at which a row was delivered.
func deliveredAt(m *mapping.Mapping) string {
	if m.Done.At != "" {
		return m.Done.At
	}
	if m.Done.How == mapping.DoneTimestamp {
		return m.Done.Column
	}
	return ""
}

// Run deletes until ctx ends. It logs errors, and tries again after the usual pause.
func (p *Purge) Run(ctx context.Context) error {
	for {
		n, err := p.Once(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			p.cfg.Logger.Warn("delivered rows could not be deleted", "table", p.source.mapping.Table, "error", err)
		case n > 0:
			p.cfg.Logger.Debug("delivered rows deleted", "table", p.source.mapping.Table, "messages", n)
		}
		if dial.Pause(ctx, p.cfg.Every) != nil {
			return nil
		}
	}
}

// Once deletes all rows that are old enough and returns their number.
func (p *Purge) Once(ctx context.Context) (total int64, err error) {
	var conn *pgx.Conn
	defer func() { dial.HangUp(conn) }()
	t, _, err := p.source.open(ctx, &conn)
	if err != nil {
		return 0, err
	}
	sql, err := p.sql(ctx, conn, t)
	if err != nil {
		return 0, err
	}
	for {
		n, err := p.batch(ctx, conn, sql)
		if err != nil {
			return total, fmt.Errorf("delete delivered rows: %w", existing.Explain(err))
		}
		total += n
		if n < purgeBatch {
			return total, nil
		}
	}
}

// batch runs one statement. A row that is deleted here and missing from the archive, because a trigger or a rule of the
// archive keeps it out, is kept.
func (p *Purge) batch(ctx context.Context, conn *pgx.Conn, sql string) (deleted int64, err error) {
	err = pgx.BeginFunc(ctx, conn, func(pgx.Tx) (err error) {
		deleted, err = p.delete(ctx, conn, sql, purgeBatch)
		return err
	})
	return deleted, err
}

// delete runs the statement for some rows, in a transaction of the caller's.
func (p *Purge) delete(ctx context.Context, conn *pgx.Conn, sql string, most int) (deleted int64, err error) {
	if p.cfg.Archive == "" {
		tag, err := conn.Exec(ctx, sql, p.cfg.Keep.Microseconds(), most)
		return tag.RowsAffected(), err
	}
	var kept int64
	if err := conn.QueryRow(ctx, sql, p.cfg.Keep.Microseconds(), most).Scan(&deleted, &kept); err != nil {
		return 0, err
	}
	if kept != deleted {
		return 0, fmt.Errorf("the archive %s has taken %d of %d rows, so none is deleted: check its triggers and rules",
			p.cfg.Archive, kept, deleted)
	}
	return deleted, nil
}

// sql is the statement that deletes rows, or moves them to the archive.
func (p *Purge) sql(ctx context.Context, conn *pgx.Conn, t *existing.Table) (string, error) {
	if p.cfg.Archive == "" {
		return purgeSQL(t), nil
	}
	return p.archive(ctx, conn, t, purgeSQL(t))
}

// archive makes a DELETE insert the rows that it returns into the archive, in the same statement.
func (p *Purge) archive(ctx context.Context, conn *pgx.Conn, t *existing.Table, sql string) (string, error) {
	info, err := existing.ReadTable(ctx, conn, p.cfg.Archive)
	if err != nil {
		return "", err
	}
	if info.OID == t.Info.OID {
		return "", outbox.Permanent(fmt.Errorf("%w: table %s can't be its own archive", mapping.ErrMapping, t.Name))
	}
	var columns, missing []string
	for _, c := range t.Info.Columns {
		switch kept := info.Column(c.Name); {
		case kept == nil:
			missing = append(missing, schema.QuoteIdentifier(c.Name))
		case !kept.Generated:
			columns = append(columns, schema.QuoteIdentifier(c.Name))
		}
	}
	if missing != nil {
		return "", outbox.Permanent(fmt.Errorf("%w: the archive %s lacks columns of table %s, which would be lost: %s",
			mapping.ErrMapping, info.TableName(), t.Name, strings.Join(missing, ", ")))
	}
	list := strings.Join(columns, ", ")
	return fmt.Sprintf(`WITH gone AS (%s RETURNING *), kept AS (INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM gone RETURNING 1)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM kept)`, sql, info.TableName(), list, list), nil
}

// purgeSQL deletes the oldest delivered rows. It skips rows that other transactions have locked.
func purgeSQL(t *existing.Table) string {
	m := &t.Mapping
	at := existing.Column(deliveredAt(m))
	var done string
	switch m.Done.How {
	case mapping.DoneBoolean:
		done = existing.Column(m.Done.Column) + " AND "
	case mapping.DoneStatus:
		done = existing.Column(m.Done.Column) + " = " + schema.QuoteLiteral(m.Done.Value) + " AND "
	}
	return fmt.Sprintf(`DELETE FROM %s WHERE %s IN (
	SELECT %s FROM %s m WHERE %s%s < now() - $1::bigint * interval '1 microsecond' ORDER BY %s LIMIT $2::bigint FOR UPDATE SKIP LOCKED)`,
		t.Name, schema.QuoteIdentifier(m.ID), t.ID, t.Name, done, at, at)
}
