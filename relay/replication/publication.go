package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/mapping"
)

// publicationSQL creates the publication. The owner of the tables runs it, and also needs CREATE on the database.
//
// Only inserts are sent, so retention and other changes of rows are not. They are sent in the name of outbox.messages,
// whichever segment they go into.
func publicationSQL(name string) string {
	return mapping.CreatePublicationSQL(name, mapping.TableName{Schema: "outbox", Name: "messages"})
}

// sendsSQL is the condition that publication pub sends inserts into outbox.messages, in that table's name; wholeSQL,
// that it sends all rows and columns.
const (
	sendsSQL = `(pub.pubinsert AND pub.pubviaroot AND (pub.puballtables OR EXISTS (SELECT ` + memberSQL + `)))`
	wholeSQL = `NOT EXISTS (SELECT ` + memberSQL + ` AND coalesce(to_jsonb(r) ->> 'prqual', to_jsonb(r) ->> 'prattrs') IS NOT NULL)`

	memberSQL  = `FROM pg_publication_rel r WHERE r.prpubid = pub.oid AND r.prrelid = 'outbox.messages'::regclass`
	segmentSQL = `FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'outbox.messages'::regclass`
)

// unloggedSQL names a segment of which inserts are not in the log, if there is one.
const unloggedSQL = `(SELECT min(c.oid::regclass::text) ` + segmentSQL + ` AND c.relpersistence <> 'p')`

// versionSQL, followed by a name, returns the version of the publication of that name. There is none if inserts into
// outbox.messages may not be sent. And after any time during which they may not have been, the version is another one:
//
//   - ALTER PUBLICATION writes the rows of the publication and of its table anew. xmin is the transaction that wrote a
//     row. xmax is one that changes it now: its commit may be in the log, and so decide what is sent, before it is
//     visible. It stays there if that transaction is rolled back, which is one version more and does no harm.
//   - SET UNLOGGED and SET LOGGED rewrite a segment, with a new TOAST table. TRUNCATE and VACUUM FULL, after which
//     nothing is missing, keep it; so relfilenode would not do. A segment is locked until the change is visible.
//   - A segment that was detached has a new row in pg_inherits.
const versionSQL = `SELECT format('%s %s %s, %s, %s', pub.oid, pub.xmin, pub.xmax,
		(SELECT format('%s %s %s', r.oid, r.xmin, r.xmax) ` + memberSQL + `),
		(SELECT hashtextextended(string_agg(concat_ws(' ', i.inhrelid, i.xmin, c.reltoastrelid), ',' ORDER BY i.inhrelid), 0)
			` + segmentSQL + `))
	FROM pg_publication pub WHERE ` + sendsSQL + ` AND ` + wholeSQL + ` AND ` + unloggedSQL + ` IS NULL AND pub.pubname = `

// Publication returns the version of a publication of outbox.messages, and creates it if there is none. A place in the
// log, in outbox.slots, names the version through which the log was read up to there. An error that waiting doesn't
// cure is marked by outbox.Permanent.
//
// The publication must exist before the slot: for each change, the server looks it up as of the time of the change.
func Publication(ctx context.Context, conn *pgx.Conn, name string) (version string, err error) {
	for made := false; ; made = true {
		var sends, whole bool
		var unlogged string
		err := conn.QueryRow(ctx, `SELECT `+sendsSQL+`, `+wholeSQL+`, coalesce(`+unloggedSQL+`, ''), coalesce((`+versionSQL+`$1), '')
			FROM pg_publication pub WHERE pub.pubname = $1`, name).Scan(&sends, &whole, &unlogged, &version)
		switch {
		case errors.Is(err, pgx.ErrNoRows) && !made:
		case err != nil:
			return "", fmt.Errorf("look for the publication: %w", err)
		case unlogged != "":
			return "", dial.Permanent("the segment %s is UNLOGGED, so what is inserted into it is not in the log: run: "+
				"ALTER TABLE %[1]s SET LOGGED", unlogged)
		case !sends || !whole:
			fault := "doesn't send the inserts into outbox.messages in that table's name"
			if sends {
				fault = "has a row filter or a column list, and would leave messages out"
			}
			return "", dial.Permanent("the publication %q %s. Name another publication in the destination, or, if no other program reads "+
				"this one, drop it and run: %s", name, fault, publicationSQL(name))
		default:
			return version, nil
		}
		_, err = conn.Exec(ctx, publicationSQL(name))
		switch state := sqlstate.Of(err); {
		case err == nil || state == "42710" || state == "23505": // another relay was faster
		case state == "42501":
			return "", dial.Permanent("the publication is missing, and this role may not make it: let the owner of the outbox run: %s: %w",
				publicationSQL(name), err)
		default:
			return "", fmt.Errorf("make the publication: %w", err)
		}
	}
}
