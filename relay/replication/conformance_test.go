package replication

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

func TestTheLogIsASource(t *testing.T) {
	t.Parallel()
	servers.OnMajors(t, func(t *testing.T, config servers.PostgresConfig) {
		for _, way := range []string{"rows of the table, then the log", "rows of the log", "emitted messages"} {
			t.Run(way, func(t *testing.T) {
				t.Parallel()
				if way != "rows of the log" {
					servers.Long(t)
				}
				relaytest.RunSource(t, func(t *testing.T) relaytest.SourceHarness {
					db := newDatabase(t, config)
					if way != "rows of the table, then the log" {
						db.stream("orders")
						if strings.Contains(t.Name(), "each_destination") {
							db.stream("a")
							db.stream("b")
						}
					}
					return harness(db, way == "emitted messages")
				})
			})
		}
	})
}

// stream makes a destination's slot, so that everything from here on comes by the log.
func (db database) stream(destination string) {
	db.T.Helper()
	source, _ := db.source(destination, Config{})
	s := acquire(db.T, source)
	streaming(db.T, s)
	if err := s.Close(db.T.Context()); err != nil {
		db.T.Fatal(err)
	}
}

func harness(db database, emit bool) relaytest.SourceHarness {
	var mu sync.Mutex
	cut := make(map[relay.Session]*lines)
	return relaytest.SourceHarness{
		NoGroups: true,
		Open: func(t *testing.T, o relaytest.SourceOptions) relay.Source {
			db := database{testdb.DB{T: t, URL: db.URL}}
			cfg := Config{Emitted: emit}
			cfg.Table.Lease = o.Lease
			s, l := db.source(o.Destination, cfg)
			s.table.SetOwner(o.Relay) // what a registration under that name would give it
			return noting{s, func(session relay.Session) {
				mu.Lock()
				defer mu.Unlock()
				cut[session] = l
			}}
		},
		Begin: db.begin(emit),
		Crash: func(s relay.Session) {
			mu.Lock()
			l := cut[s]
			mu.Unlock()
			crash(s, l)
		},
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

// noting is a source that tells of its sessions.
type noting struct {
	relay.Source
	note func(relay.Session)
}

func (n noting) Acquire(ctx context.Context) (relay.Session, error) {
	session, err := n.Source.Acquire(ctx)
	if err == nil {
		n.note(session)
	}
	return session, err
}

// begin starts transactions that write rows, or messages into the log alone.
func (db database) begin(emit bool) func(ctx context.Context) (relaytest.SourceTx, error) {
	return func(ctx context.Context) (relaytest.SourceTx, error) {
		return db.Begin(ctx, func(ctx context.Context, tx pgx.Tx, ms []outbox.Message) error {
			var writer outbox.Writer
			write := writer.Write
			if emit {
				write = writer.Emit
			}
			_, err := write(ctx, tx, ms...)
			return err
		})
	}
}
