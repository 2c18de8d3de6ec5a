package schema

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pgoutbox/outbox/internal/shell"
)

// State describes the schema of a database.
type State struct {
	Database string
	User     string
	Server   string // PostgreSQL's version as people write it, "18.6"
	Standby  bool

	// Version is the highest applied migration, 0 when the schema is missing. Latest is what this
	// package knows.
	Version int
	Latest  int
	Applied []Applied
	Pending []Migration
}

// TooNew reports whether this program can't work with the schema because it is too new. It works with the next version,
// too, so that the schema can be migrated first, and programs replaced one after the other, and back: a migration keeps
// what the program of the version before needs.
func (s State) TooNew() bool { return s.Version > s.Latest+1 }

// Applied is a migration that the database has.
type Applied struct {
	Version   int
	Name      string
	Checksum  string
	AppliedAt time.Time
}

// Status reads what q's database has. It changes nothing and needs SELECT on outbox.migrations. Its
// errors are ErrUnsupportedServer, ErrForbidden, and those of the connection.
func Status(ctx context.Context, q Querier) (State, error) {
	state, _, err := status(ctx, q, Migrations(), viewerAdvice)
	if err != nil {
		return State{}, fmt.Errorf("schema: %w", err)
	}
	return state, nil
}

// schemaRights are the role's rights on an existing schema.
type schemaRights struct {
	exists  bool
	usage   bool
	reading bool // SELECT on outbox.migrations
}

// What a role that may not read the schema is told, by what it is about to do.
const (
	viewerAdvice = "as the schema's owner, run: outbox migrate grants --apply --viewer ROLE " +
		"(or --writer, --relay, --consumer, by what it does)"
	relayAdvice = "as the schema's owner, run: outbox migrate grants --apply --relay ROLE"
	ownerAdvice = "run this as the schema's owner"
)

func status(ctx context.Context, q Querier, known []Migration, advice string) (State, schemaRights, error) {
	state := State{Latest: len(known)}
	var rights schemaRights

	// The version alone and first: what follows may not parse on an old server.
	var number int
	if err := q.QueryRow(ctx, `SELECT current_setting('server_version_num')::int4`).Scan(&number); err != nil {
		return State{}, rights, fmt.Errorf("read the server's version: %w", err)
	}
	if err := supported(number); err != nil {
		return State{}, rights, err
	}

	// The catalog rather than to_regclass, which fails for a role without USAGE on the schema.
	var recorded bool
	err := q.QueryRow(ctx, `
		SELECT current_database()::text, current_user::text, split_part(current_setting('server_version'), ' ', 1),
		       pg_is_in_recovery(), n.oid IS NOT NULL, coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
		       c.oid IS NOT NULL, coalesce(has_table_privilege(c.oid, 'SELECT'), false)
		FROM (VALUES (1)) AS one
		LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'outbox'
		LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = 'migrations'`,
	).Scan(&state.Database, &state.User, &state.Server, &state.Standby, &rights.exists, &rights.usage, &recorded, &rights.reading)
	if err != nil {
		return State{}, rights, fmt.Errorf("look for the schema: %w", err)
	}
	rights.exists = rights.exists && recorded
	if !rights.exists {
		state.Pending = known
		return state, rights, nil
	}
	if !rights.usage || !rights.reading {
		return State{}, rights, fmt.Errorf("%w: %q may not read outbox.migrations in database %q: %s",
			ErrForbidden, state.User, state.Database, strings.ReplaceAll(advice, "ROLE", shell.Word(state.User)))
	}

	rows, err := q.Query(ctx, `SELECT version, name, checksum, applied_at FROM outbox.migrations ORDER BY version`)
	if err == nil {
		state.Applied, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Applied])
	}
	if err != nil {
		return State{}, rights, fmt.Errorf("read outbox.migrations: %w", err)
	}
	if n := len(state.Applied); n > 0 {
		state.Version = state.Applied[n-1].Version
	}
	if state.Version < len(known) {
		state.Pending = known[state.Version:]
	}
	return state, rights, nil
}

func supported(number int) error {
	if number >= MinServerVersion {
		return nil
	}
	return fmt.Errorf("%w: it is PostgreSQL %d, and the outbox needs %d or later: upgrade the server",
		ErrUnsupportedServer, number/10000, MinServerVersion/10000)
}

// unchanged compares what was applied with what is known.
func unchanged(state State, known []Migration) error {
	for i, applied := range state.Applied {
		if applied.Version != i+1 {
			return fmt.Errorf("%w: outbox.migrations of database %q has no version %d: restore that row, or install into a new database",
				ErrChanged, state.Database, i+1)
		}
		if i < len(known) && applied.Checksum != known[i].Checksum {
			return fmt.Errorf("%w: %s was applied to database %q on %s with checksum %.12s, and this program has %.12s: "+
				"use the program that applied it, or install into a new database", ErrChanged, known[i], state.Database,
				applied.AppliedAt.UTC().Format(time.RFC3339), applied.Checksum, known[i].Checksum)
		}
	}
	return nil
}

func tooNew(state State) error {
	return fmt.Errorf("%w: database %q has version %d, and this program knows versions up to %d: use a newer program",
		ErrTooNew, state.Database, state.Version, state.Latest)
}
