package existing

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// Explain adds to a server's error what to do about it.
func Explain(err error) error {
	switch sqlstate.Of(err) {
	case "42501":
		if hidden := schema.ExplainHidden(err); errors.Is(hidden, schema.ErrHidden) {
			return outbox.Permanent(hidden)
		}
		return outbox.Permanent(fmt.Errorf("%w: grant this role what the statement needs: SELECT, and UPDATE or DELETE to mark rows", err))
	case "23505":
		return outbox.Permanent(fmt.Errorf("%w: another message has this key already; if that is in the table for "+
			"dead letters, ids were used twice: move its row away, or leave out the unique index there", err))
	case "0A000":
		return outbox.Permanent(fmt.Errorf("%w: a rule of the table rewrites the statements by which a relay marks rows: "+
			"use a trigger instead", err))
	case "42P10", "55000":
		// A publication makes the server refuse changes of the table. This routine's details have names; those of
		// others, or of a trigger, may have values.
		refused := (*pgconn.PgError)(nil)
		if errors.As(err, &refused) && refused.Routine == "CheckCmdReplicaIdentity" {
			return outbox.Permanent(fmt.Errorf("%w: %s", err, strings.TrimSpace(refused.Detail+" "+refused.Hint)))
		}
	case "42P01", "42703", "23502", "23514", "42804":
		return outbox.Permanent(fmt.Errorf("%w: the mapping doesn't fit the tables", err))
	}
	return err
}

// permanentMapping marks errors that waiting doesn't cure.
func permanentMapping(err error) error {
	if errors.Is(err, mapping.ErrMapping) {
		return outbox.Permanent(err)
	}
	return err
}

// RefuseHidden refuses tables whose policies hide rows from this role.
func RefuseHidden(ctx context.Context, conn *pgx.Conn, tables ...string) error {
	err := schema.CheckVisible(ctx, conn, tables...)
	if errors.Is(err, schema.ErrHidden) {
		err = outbox.Permanent(err)
	}
	return err
}

// ErrRow is the error of an answer that has other columns than were asked for.
var ErrRow = errors.New("a row doesn't match the mapping")
