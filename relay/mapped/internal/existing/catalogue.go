package existing

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// ReadTable reads a table's description from the catalogue.
func ReadTable(ctx context.Context, q schema.Querier, table string) (*mapping.Table, error) {
	name, err := mapping.ParseTableName(table)
	if err != nil {
		return nil, outbox.Permanent(err)
	}
	info, err := mapping.ReadTable(ctx, q, name)
	return info, permanentMapping(err)
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
	err := schema.Seen(ctx, conn, tables...)
	if errors.Is(err, schema.ErrHidden) {
		err = outbox.Permanent(err)
	}
	return err
}
