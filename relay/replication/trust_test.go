package replication

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
	"github.com/pgoutbox/outbox/schema"
)

// login makes a role that may log in and nothing else, and returns a connection of it.
func (db database) login(name string) (role string, conn *pgx.Conn) {
	db.T.Helper()
	role = name + "_" + db.Value("SELECT current_database()::text")
	db.Exec("CREATE ROLE " + role + " LOGIN")
	db.T.Cleanup(func() {
		db := database{db.DB}
		conn, err := pgx.Connect(context.Background(), db.URL)
		if err != nil {
			db.T.Fatal(err)
		}
		defer dial.HangUp(conn)
		if _, err := conn.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			db.T.Error(err)
		}
	})
	cfg := db.Config()
	cfg.User = role
	conn, err := pgx.ConnectConfig(db.T.Context(), cfg)
	if err != nil {
		db.T.Fatal(err)
	}
	db.T.Cleanup(func() { dial.HangUp(conn) })
	return role, conn
}

const forge = `SELECT pg_logical_emit_message(true, 'outbox', '\x01'::bytea || int8send(1) || timestamptz_send(now()) ||
	int4send(16) || uuid_send(gen_random_uuid()) || int4send(1) || 't' || int4send(1) || 'k' || decode(repeat('ffffffff', 3), 'hex') ||
	int4send(6) || 'forged' || decode(repeat('ffffffff', 3), 'hex'))::text`

func TestARoleWithoutRightsCanNotPublishByTheLog(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	source, _ := db.source("d", Config{Heartbeat: 50 * time.Millisecond})
	s := acquire(t, source)
	streaming(t, s)
	_, nobody := db.login("nobody")
	var at string
	if err := nobody.QueryRow(t.Context(), forge).Scan(&at); err != nil {
		t.Fatal(err)
	}
	// What comes is what was committed after it, and the slot goes past it.
	db.insert("a row")
	ds := read(t, s, 1)
	if got := texts(ds); got[0] != "a row" {
		t.Errorf("read %q", got)
	}
	testdb.Settle(t, s, &ds[0])
	ctx := await.Context(t)
	for !db.try("SELECT confirmed_flush_lsn > $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1", source.cfg.Slot, at) {
		if b, err := s.Next(ctx, 1); err != nil || len(b.Deliveries) > 0 {
			t.Fatal(texts(b.Deliveries), err)
		}
	}
}

func TestWhoMayEmitIsForTheOwnerToSay(t *testing.T) {
	t.Parallel()
	for _, major := range []string{"14", "18"} { // the function has another argument since 17
		t.Run("PostgreSQL "+major, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t, servers.PostgresConfig{Major: major})
			said := func() string {
				t.Helper()
				var log bytes.Buffer
				cfg := Config{Emitted: true}
				cfg.Table.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
				source, _ := db.source("d", cfg)
				if err := source.ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				return log.String()
			}
			emitter, service := db.login("emitter")
			_, nobody := db.login("nobody")
			warning := said()
			_, after, found := strings.Cut(warning, "a superuser runs, in this database: ")
			revoke, _, _ := strings.Cut(after, " and what")
			if !found || strings.Count(revoke, "REVOKE") != 2 {
				t.Fatalf("said %q", warning)
			}
			if _, err := nobody.Exec(t.Context(), forge); err != nil {
				t.Fatal(err)
			}
			db.Exec(revoke)
			if again := said(); again != "" {
				t.Errorf("after the REVOKE: %s", again)
			}
			db.Exec(schema.EmitterGrants(emitter))
			for _, text := range []string{"'x'::text", "'x'::bytea"} {
				var refused *pgconn.PgError
				if _, err := nobody.Exec(t.Context(), "SELECT pg_logical_emit_message(true, 'outbox', "+
					text+")"); !errors.As(err, &refused) || refused.Code != "42501" {
					t.Errorf("a role with no right: %v", err)
				}
			}

			source, _ := db.source("d", Config{Emitted: true})
			s := acquire(t, source)
			streaming(t, s)
			tx, err := service.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := new(outbox.Writer).Emit(t.Context(), tx, outbox.Message{Topic: "t", Payload: []byte("granted")}); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(texts(read(t, s, 1))); got != "[granted]" {
				t.Errorf("read %s", got)
			}
		})
	}
}

// forged is a logical message in the encoding of an outbox message.
func forged(id int64, key, payload string, others map[int]string) []byte {
	b := binary.BigEndian.AppendUint64([]byte{outbox.EmitVersion}, uint64(id))
	b = append(b, make([]byte, 8)...)
	messageID := outbox.NewID()
	fields := map[int]string{0: string(messageID[:]), 1: "t", 2: key, 6: payload}
	maps.Copy(fields, others)
	for place := range 10 {
		field, given := fields[place]
		if !given {
			b = binary.BigEndian.AppendUint32(b, 1<<32-1)
			continue
		}
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(field))), field...)
	}
	return b
}

func TestNoForgedMessageStopsTheDestination(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	source, _ := db.source("d", Config{Emitted: true})
	s := acquire(t, source) // from here on everything comes by the log
	streaming(t, s)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, nobody := db.login("nobody")
	long := make([]byte, 10_000)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range long {
		long[i] = byte('a' + random.IntN(26))
	}
	later := string(binary.BigEndian.AppendUint64(nil, 1<<60)) // deliver_at: it has to be held
	for _, content := range [][]byte{
		nil, {}, {0}, {1}, []byte("garbage"), long, {2, 0, 0},
		forged(1, string(long), "key", nil), forged(1, string(long), "key held", map[int]string{9: later}),
		forged(-1, "k", "id", map[int]string{9: later}), forged(1<<63-1,
			"k", "id", map[int]string{9: later}), forged(0, "k", "same id", map[int]string{9: later}),
		forged(0, "k", "same id", map[int]string{9: later}),
		forged(2, "a\x00b", "NUL", map[int]string{9: later}), forged(2, "\xff\xfe", "no UTF-8", map[int]string{9: later}),
		forged(3, "k", "headers", map[int]string{8: "[1"}), forged(3, "k", "headers", map[int]string{8: `{"a\u0000": "b"}`, 9: later}),
		forged(4, "k", "topic", map[int]string{1: string(long)}), forged(4,
			"k", "topic", map[int]string{1: "a\x00b"}), forged(4, "k", "topic", map[int]string{1: ""}),
		forged(5, "k", "moment", map[int]string{9: "\x80\x00\x00\x00\x00\x00\x00\x00"}), forged(5,
			"k", "moment", map[int]string{9: "short"}),
		forged(6, "k", "message id", map[int]string{0: "short"}), forged(6,
			"k", "aggregate", map[int]string{4: string(long), 5: "\x00", 9: later}),
	} {
		if _, err := nobody.Exec(t.Context(), "SELECT pg_logical_emit_message(true, 'outbox', $1::bytea)", content); err != nil {
			t.Fatal(err)
		}
	}
	db.insert("good")

	broker := relaytest.NewMemory()
	r, err := relay.New(source, broker, relay.Config{Logger: slog.New(slog.NewTextHandler(testLog{t}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	good := func() (n int) {
		for _, m := range broker.Messages() {
			if string(m.Payload) == "good" {
				n++
			}
		}
		return n
	}
	waiting := await.Context(t)
	if err := broker.Wait(waiting, func() bool { return good() > 0 }); err != nil {
		t.Errorf("the message behind them did not come: %v", err)
	}
	// It is settled, so all before it are.
	for !db.try("SELECT delivered > 0 AND last_error IS NULL FROM outbox.cursors") {
		if waiting.Err() != nil {
			t.Error("nothing is settled: " + db.Value("SELECT row_to_json(c)::text FROM outbox.cursors c"))
			break
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := good(); n != 1 {
		t.Errorf("the message behind them came %d times", n)
	}
}
