package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// DB begins transactions: a *pgx.Conn or a *pgxpool.Pool.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// UpConfig tunes Up. The zero value is fit for use.
type UpConfig struct {
	// LockTimeout bounds how long a statement waits for a lock on a table; meanwhile every later user of
	// that table waits behind it. Default 5 s.
	LockTimeout time.Duration

	// Wait bounds how long Up waits for another instance that migrates the same database. Default 1 min.
	Wait time.Duration

	// DryRun makes Up return what it would apply, and change nothing.
	DryRun bool
}

func (c UpConfig) withDefaults() (UpConfig, error) {
	var faults settings.Faults
	// PostgreSQL counts milliseconds, and takes 0 for "wait forever".
	settings.AtLeast(&faults, "LockTimeout", &c.LockTimeout, 5*time.Second, time.Millisecond)
	settings.AtLeast(&faults, "Wait", &c.Wait, time.Minute, time.Millisecond)
	return c, faults.Err()
}

// errStandby is not exported: a program can't decide by itself which server to write to.
var errStandby = errors.New("the server is a hot standby and can't be written to: connect to the primary")

// Up applies every migration that the database lacks, each in a transaction of its own, and returns
// those that this call has applied. Any number of instances may call it at once: one works, the others
// wait and find nothing to do. When it fails, the migrations that it returns stay applied and the
// failed one has changed nothing.
//
// Errors are ErrUnsupportedServer, ErrTooNew, ErrChanged, ErrForbidden and the server's own.
func Up(ctx context.Context, db DB, cfg UpConfig) ([]Migration, error) {
	applied, err := up(ctx, db, cfg, Migrations())
	if err != nil {
		return applied, fmt.Errorf("schema: %w", err)
	}
	return applied, nil
}

func up(ctx context.Context, db DB, cfg UpConfig, known []Migration) (applied []Migration, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	for {
		pending, err := step(ctx, db, cfg, known)
		if err != nil || len(pending) == 0 {
			return applied, err
		}
		if cfg.DryRun {
			return pending, nil
		}
		applied = append(applied, pending[0])
	}
}

// step applies the first pending migration and returns what was pending before.
func step(ctx context.Context, db DB, cfg UpConfig, known []Migration) (pending []Migration, err error) {
	// READ COMMITTED whatever the default is: the statements after the lock must see what its last holder did.
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	if cfg.DryRun {
		options.AccessMode = pgx.ReadOnly
	}
	tx, err := db.BeginTx(ctx, options)
	if err != nil {
		if code := sqlstate.Of(err); code == "0A000" || code == "25006" {
			return nil, errStandby // a standby refuses READ WRITE
		}
		return nil, fmt.Errorf("begin: %w", err)
	}
	// After a commit this does nothing; ctx may have ended by now, and the connection must still be usable.
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	if !cfg.DryRun {
		if err := takeLock(ctx, tx, cfg.Wait); err != nil {
			return nil, err
		}
	}
	state, _, err := status(ctx, tx, known, ownerAdvice)
	if err != nil {
		return nil, err
	}
	if err := unchanged(state, known); err != nil {
		return nil, err
	}
	if state.TooNew() {
		return nil, tooNew(state)
	}
	if len(state.Pending) == 0 || cfg.DryRun {
		return state.Pending, nil
	}

	migration := state.Pending[0]
	if _, err := tx.Exec(ctx, script(migration, cfg.LockTimeout)); err != nil {
		return nil, explain(err, migration, state, cfg)
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, fmt.Errorf("commit %s: %w", migration, err)
	}
	return state.Pending, nil
}

// lockSQL takes an advisory lock of the transaction, so it ends with it, whatever happens to this process.
const lockSQL = `SELECT pg_advisory_xact_lock(hashtextextended('outbox.migrations', 0))`

func takeLock(ctx context.Context, tx pgx.Tx, wait time.Duration) error {
	_, err := tx.Exec(ctx, setLockTimeout(wait)+lockSQL)
	switch {
	case sqlstate.Of(err) == "55P03":
		return fmt.Errorf("another instance has been migrating this database for %v: "+
			"look for its session in pg_locks (locktype advisory), or wait longer: %w", wait, err)
	case err != nil:
		return fmt.Errorf("wait for other instances: %w", err)
	}
	return nil
}

func setLockTimeout(d time.Duration) string {
	return fmt.Sprintf("SET LOCAL lock_timeout = '%dms';\n", d.Milliseconds())
}

// script is the inside of a migration's transaction, the same for Up and for SQL. Everything that a
// migration creates is qualified; the search path keeps what it calls to PostgreSQL's own.
func script(m Migration, lockTimeout time.Duration) string {
	var b strings.Builder
	b.WriteString(setLockTimeout(lockTimeout))
	b.WriteString("SET LOCAL search_path = pg_catalog;\n")
	if m.Version == 1 {
		// Not CREATE SCHEMA IF NOT EXISTS, which asks for CREATE on the database even if there is nothing to do.
		b.WriteString(`DO $$ BEGIN
    IF to_regnamespace('outbox') IS NULL THEN CREATE SCHEMA outbox; END IF;
END $$;
CREATE TABLE IF NOT EXISTS outbox.migrations (
    version    integer     NOT NULL PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
`)
	}
	fmt.Fprintf(&b, `DO $$ BEGIN
    IF (SELECT coalesce(max(version), 0) FROM outbox.migrations) <> %d THEN
        RAISE EXCEPTION 'outbox: %s needs a schema of version %d, this one has %%',
            (SELECT coalesce(max(version), 0) FROM outbox.migrations);
    END IF;
END $$;
`, m.Version-1, m, m.Version-1)
	b.WriteString(strings.TrimSpace(m.SQL))
	fmt.Fprintf(&b, "\n\nINSERT INTO outbox.migrations (version, name, checksum) VALUES (%d, '%s', '%s');\n", m.Version, m.Name, m.Checksum)
	return b.String()
}

// explain turns the failure of a migration into what to do about it.
func explain(err error, m Migration, state State, cfg UpConfig) error {
	switch sqlstate.Of(err) {
	case "55P03":
		return fmt.Errorf("apply %s: another session held a lock on the table for %v, and nothing was changed: find it with "+
			"SELECT pid, state, query FROM pg_stat_activity, and run this again, or allow a longer lock timeout: %w",
			m, cfg.LockTimeout, err)
	case "42501":
		return fmt.Errorf("apply %s: %w: %q may not do this in database %q: run it as the owner of the database or of "+
			"the schema outbox: %w",
			m, ErrForbidden, state.User, state.Database, err)
	case "42P07", "42723":
		if m.Version == 1 {
			return fmt.Errorf("apply %s: database %q has a schema \"outbox\" that something else made: "+
				"rename that one, or install into another database: %w", m, state.Database, err)
		}
	}
	return fmt.Errorf("apply %s: %w", m, err)
}

// SQL returns a script that brings a schema from version from (0: none) to version to, with everything
// that Up records, so that either can go on where the other stopped. Each migration is a transaction
// that changes nothing if the schema is not at the version before it.
func SQL(from, to int) (string, error) {
	known := Migrations()
	if from < 0 || from > to || to > len(known) {
		return "", fmt.Errorf("schema: there is no way from version %d to %d: versions are 0 (none) to %d, upwards", from, to, len(known))
	}
	var b strings.Builder
	for _, m := range known[from:to] {
		fmt.Fprintf(&b, "-- %s\nBEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;\n%s%s;\n%sCOMMIT;\n\n",
			m, setLockTimeout(time.Minute), lockSQL, script(m, 5*time.Second))
	}
	return b.String(), nil
}
