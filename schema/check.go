package schema

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// Check returns nil if a relay can work with q's database. Otherwise the error says why and what to do: it is one of
// ErrUnsupportedServer, ErrMissing, ErrOutdated, ErrTooNew, ErrChanged, ErrForbidden, ErrHidden and ErrSegments, or the
// connection's.
func Check(ctx context.Context, q Querier) error {
	if err := check(ctx, q, Migrations()); err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	return nil
}

func check(ctx context.Context, q Querier, known []Migration) error {
	state, rights, err := status(ctx, q, known, relayAdvice)
	switch {
	case err != nil:
		return err
	case !rights.exists || state.Version == 0:
		return fmt.Errorf("%w in database %q: run: outbox migrate up", ErrMissing, state.Database)
	case state.Version < state.Latest:
		return fmt.Errorf("%w: database %q has version %d, and this program needs %d: run: outbox migrate up",
			ErrOutdated, state.Database, state.Version, state.Latest)
	case state.TooNew():
		return tooNew(state)
	}
	if err := unchanged(state, known); err != nil {
		return err
	}
	if err := relayMay(ctx, q, state); err != nil {
		return err
	}
	return Intact(ctx, q)
}

// relayMay compares the role's rights with those that Grants gives to a relay.
func relayMay(ctx context.Context, q Querier, state State) error {
	missing, err := RelayLacks(ctx, q, state.User)
	switch {
	case sqlstate.Of(err) == "42P01":
		return fmt.Errorf("%w in part from database %q, though its migrations are recorded: "+
			"restore what was dropped, or install into a new database: %w", ErrMissing, state.Database, err)
	case err != nil:
		return err
	case len(missing) > 0:
		return fmt.Errorf("%w: %q needs %s in database %q: %s", ErrForbidden, state.User, strings.Join(missing, ", "), state.Database,
			strings.ReplaceAll(relayAdvice, "ROLE", shell.Word(state.User)))
	}
	return nil
}

// RelayLacks lists the rights that a relay needs and the role doesn't have, as in "SELECT on outbox.messages" or "USAGE
// on schema outbox". The role must exist, and who asks needs USAGE too.
func RelayLacks(ctx context.Context, q Querier, role string) ([]string, error) {
	var objects, rights []string
	var schemas []bool
	for _, p := range relayPrivileges() {
		for _, right := range p.rights {
			objects, rights, schemas = append(objects, p.object), append(rights, right), append(schemas, p.kind == onSchema)
		}
	}
	rows, err := q.Query(ctx, `
		SELECT r.privilege || CASE WHEN r.schema THEN ' on schema ' ELSE ' on ' END || r.object
		FROM unnest($1::text[], $2::text[], $4::boolean[]) WITH ORDINALITY AS r (object, privilege, schema, place)
		WHERE NOT CASE WHEN r.schema THEN has_schema_privilege($3::text::name, r.object, r.privilege)
			ELSE has_table_privilege($3::text::name, r.object, r.privilege) END ORDER BY r.place`, objects, rights, role, schemas)
	var missing []string
	if err == nil {
		missing, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		return nil, fmt.Errorf("read the role's privileges: %w", err)
	}
	return missing, nil
}
