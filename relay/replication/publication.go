package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay/internal/dial"
)

// publicationSQL creates the publication. The owner of the tables runs it, and also needs CREATE on the database.
//
// Only inserts are sent, so retention and other changes of rows are not. They are sent in the name of outbox.messages,
// whichever segment they go into.
func publicationSQL(name string) string {
	return mapping.CreatePublicationSQL(name, mapping.TableName{Schema: "outbox", Name: "messages"})
}

// ensurePublication returns the oid of the publication, and creates it if there is none. The publication must exist
// before the slot: for each change, the server looks it up as of the time of the change.
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
		case !complete || filtered:
			fault := "doesn't send the inserts into outbox.messages in that table's name"
			if complete {
				fault = "has a row filter or a column list, and would leave messages out"
			}
			return 0, dial.Permanent("the publication %q %s. Name another publication in the destination, or, if no other program reads "+
				"this one, drop it and run: %s", name, fault, publicationSQL(name))
		default:
			return oid, nil
		}
		_, err = conn.Exec(ctx, publicationSQL(name))
		switch state := sqlstate.Of(err); {
		case err == nil || state == "42710" || state == "23505": // another relay was faster
		case state == "42501":
			return 0, dial.Permanent("the publication is missing, and this role may not make it: let the owner of the outbox run: %s: %w",
				publicationSQL(name), err)
		default:
			return 0, fmt.Errorf("make the publication: %w", err)
		}
	}
}
