package daemon

import (
	"errors"
	"fmt"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/schema"
)

// migratable adds to the error of a schema that is missing or old which command is about this database, of several.
func (u *unit) migratable(err error) error {
	if u.displayName() == "" || !errors.Is(err, schema.ErrMissing) && !errors.Is(err, schema.ErrOutdated) {
		return err
	}
	return fmt.Errorf("%w: here: %s, and of all databases: outbox migrate up --all", err,
		health.OnDatabase("outbox migrate up", u.displayName()))
}
