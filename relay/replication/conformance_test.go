package replication

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// The versions are the oldest and the newest; OUTBOX_TEST_POSTGRES_MAJORS=14,15,16,17,18 names others.
func TestTheLogIsASource(t *testing.T) {
	t.Parallel()
	majors := []string{"14", "18"}
	ways := map[string][]string{"14": {"rows of the log"}}
	if given := os.Getenv("OUTBOX_TEST_POSTGRES_MAJORS"); given != "" {
		majors, ways = strings.Split(given, ","), nil
	}
	every := []string{"rows of the table, then the log", "rows of the log", "emitted messages"}
	for _, major := range majors {
		some := ways[major]
		if some == nil {
			some = every
		}
		for _, way := range some {
			t.Run("PostgreSQL "+major+" "+way, func(t *testing.T) {
				t.Parallel()
				relaytest.RunSource(t, func(t *testing.T) relaytest.SourceHarness {
					db := newDatabase(t, servers.PostgresConfig{Major: major})
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
	}
}

// stream makes a destination's slot, so that everything from here on comes by the log.
func (db database) stream(destination string) {
	db.t.Helper()
	source, _ := db.source(destination, Config{})
	s := acquire(db.t, source)
	streaming(db.t, s)
	if err := s.Close(db.t.Context()); err != nil {
		db.t.Fatal(err)
	}
}

func harness(db database, emit bool) relaytest.SourceHarness {
	var mu sync.Mutex
	cut := make(map[relay.Session]*lines)
	return relaytest.SourceHarness{
		NoGroups: true,
		Open: func(t *testing.T, o relaytest.SourceOptions) relay.Source {
			db := database{t, db.url}
			cfg := Config{}
			cfg.Table.Lease = o.Lease
			s, l := db.source(o.Destination, cfg)
			s.table.As(o.Relay) // what a registration under that name would give it
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
			rows, err := db.connect().Query(ctx, `SELECT message_id, convert_from(payload, 'UTF8'), attempts, reason, error
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

// writerTx is a writer's transaction on a connection of its own.
type writerTx struct {
	conn *pgx.Conn
	tx   pgx.Tx
	emit bool
}

func (db database) begin(emit bool) func(ctx context.Context) (relaytest.SourceTx, error) {
	return func(ctx context.Context) (relaytest.SourceTx, error) {
		conn, err := pgx.ConnectConfig(ctx, db.config())
		if err != nil {
			return nil, err
		}
		tx, err := conn.Begin(ctx)
		if err != nil {
			hangUp(conn)
			return nil, err
		}
		return &writerTx{conn, tx, emit}, nil
	}
}

func (w *writerTx) Insert(ctx context.Context, ms ...outbox.Message) error {
	var writer outbox.Writer
	if w.emit {
		_, err := writer.Emit(ctx, w.tx, ms...)
		return err
	}
	_, err := writer.Write(ctx, w.tx, ms...)
	return err
}

func (w *writerTx) Savepoint(ctx context.Context, f func() error) error {
	if _, err := w.tx.Exec(ctx, "SAVEPOINT s"); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	_, err := w.tx.Exec(ctx, "ROLLBACK TO SAVEPOINT s; RELEASE SAVEPOINT s")
	return err
}

func (w *writerTx) Lock(ctx context.Context, key string) error {
	_, err := w.tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", key)
	return err
}

func (w *writerTx) Commit(ctx context.Context) error {
	defer hangUp(w.conn)
	return w.tx.Commit(ctx)
}

func (w *writerTx) Rollback(ctx context.Context) error {
	defer hangUp(w.conn)
	return w.tx.Rollback(ctx)
}
