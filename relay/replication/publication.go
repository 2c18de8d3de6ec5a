package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox"
)

// PublicationSQL is the statement that makes the publication. The owner of the tables runs it, who also needs
// CREATE on the database.
//
// Only inserts are sent, so neither retention nor anything else that happens to rows is; and in the name of
// outbox.messages, whichever segment they land in.
func PublicationSQL(name string) string {
	return "CREATE PUBLICATION " + pgx.Identifier{name}.Sanitize() +
		" FOR TABLE outbox.messages WITH (publish = 'insert', publish_via_partition_root = true)"
}

// ErrPublication says that the publication isn't there or isn't fit, and can't be made by this role.
var ErrPublication = errors.New("the publication is missing")

// ensurePublication returns the oid of the publication, which it makes if there is none. It must be there
// before the slot: the server looks it up as it was when a change was made.
func ensurePublication(ctx context.Context, conn *pgx.Conn, name string) (oid uint32, err error) {
	for made := false; ; made = true {
		var complete, filtered bool
		err := conn.QueryRow(ctx, `SELECT pub.oid, `+completeSQL+`,
			EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = pub.oid
				AND coalesce(to_jsonb(r) ->> 'prqual', to_jsonb(r) ->> 'prattrs') IS NOT NULL)
			FROM pg_publication pub WHERE pub.pubname = $1`, name).Scan(&oid, &complete, &filtered)
		switch {
		case errors.Is(err, pgx.ErrNoRows) && !made:
		case err != nil:
			return 0, fmt.Errorf("look for the publication: %w", err)
		case !complete:
			return 0, outbox.Permanent(fmt.Errorf("%w: %q doesn't send the inserts into outbox.messages in that table's name. Name another publication in the destination, or, if nobody else reads this one, drop it and run: %s",
				ErrPublication, name, PublicationSQL(name)))
		case filtered:
			return 0, outbox.Permanent(fmt.Errorf("%w: %q has a row filter or a column list, and would leave messages out. Name another publication in the destination, or, if nobody else reads this one, drop it and run: %s",
				ErrPublication, name, PublicationSQL(name)))
		default:
			return oid, nil
		}
		_, err = conn.Exec(ctx, PublicationSQL(name))
		var refused *pgconn.PgError
		switch {
		case err == nil || sqlState(err) == "42710" || sqlState(err) == "23505": // another relay was faster
		case errors.As(err, &refused) && refused.Code == "42501":
			return 0, outbox.Permanent(fmt.Errorf("%w, and this role may not make it: let the owner of the outbox run: %s: %w",
				ErrPublication, PublicationSQL(name), err))
		default:
			return 0, fmt.Errorf("make the publication: %w", err)
		}
	}
}

func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}
