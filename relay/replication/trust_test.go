package replication

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
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
		defer hangUp(conn)
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
	db.T.Cleanup(func() { hangUp(conn) })
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
	settle(t, s, &ds[0])
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
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
				if _, err := nobody.Exec(t.Context(), "SELECT pg_logical_emit_message(true, 'outbox', "+text+")"); !errors.As(err, &refused) || refused.Code != "42501" {
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
