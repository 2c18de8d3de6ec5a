package polling

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

func TestSnapshotIsASource(t *testing.T) {
	t.Parallel()
	servers.OnMajors(t, func(t *testing.T, config servers.PostgresConfig) {
		relaytest.RunSource(t, func(t *testing.T) relaytest.SourceHarness { return snapshotHarness(newDatabase(t, config)) })
	})
}

func snapshotHarness(db database) relaytest.SourceHarness {
	return relaytest.SourceHarness{
		Open: func(t *testing.T, o relaytest.SourceOptions) relay.Source {
			db := database{testdb.DB{T: t, URL: db.URL}}
			s := db.source(o.Destination, SnapshotConfig{Group: o.Group, Groups: o.Groups, Lease: o.Lease})
			s.owner = o.Relay // what a registration under that name would give it
			return s
		},
		Begin: func(ctx context.Context) (relaytest.SourceTx, error) {
			return db.Begin(ctx, testdb.InsertRows(insertSQL))
		},
		Crash: func(s relay.Session) { crash(s.(*snapshotSession)) },
		DeadLetters: func(ctx context.Context, destination string) ([]relaytest.DeadLetter, error) {
			rows, err := db.Connect().Query(ctx, `SELECT message_id, convert_from(payload, 'UTF8'), attempts, reason, error
				FROM outbox.dead_letters WHERE destination = $1 ORDER BY id`, destination)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, func(row pgx.CollectableRow) (d relaytest.DeadLetter, err error) {
				err = row.Scan((*[16]byte)(&d.ID), &d.Payload, &d.Attempts, &d.Reason, &d.Error)
				return d, err
			})
		},
	}
}

// insertSQL is how a program in another language writes.
const insertSQL = `INSERT INTO outbox.messages
	(message_id, topic, key, aggregate_type, aggregate_id, event_type, payload, content_type, headers, deliver_at)
	VALUES (coalesce($1::text::uuid, gen_random_uuid()), $2, $3, $4, $5, $6, $7, $8, $9, $10)`
