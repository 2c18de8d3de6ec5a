// Package testdb is a fresh database for a test, with what the tests of strategies do with one.
package testdb

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

// DB is a database that is dropped at the end of its test. Its methods end the test when they fail.
type DB struct {
	T   testing.TB
	URL string
}

// New makes an empty one, in the cluster that tests share unless config asks for another.
func New(t testing.TB, config ...servers.PostgresConfig) DB {
	t.Helper()
	return DB{t, servers.TestDatabase(t, config...)}
}

// Installed makes one with the outbox in it.
func Installed(t testing.TB, config ...servers.PostgresConfig) DB {
	t.Helper()
	return DB{t, servers.TestCopy(t, "installed", install, config...)}
}

// Published makes one with the outbox in it, all of whose tables are published, so a statement on a table without a key
// fails.
func Published(t testing.TB, config ...servers.PostgresConfig) DB {
	t.Helper()
	return DB{t, servers.TestCopy(t, "published", publish, config...)}
}

// Install makes the outbox's tables as in one that is Published.
func (db DB) Install() {
	db.T.Helper()
	if err := publish(db.T.Context(), db.URL); err != nil {
		db.T.Fatal(err)
	}
}

func install(ctx context.Context, url string) error { return fill(ctx, url, "") }

func publish(ctx context.Context, url string) error {
	return fill(ctx, url, "CREATE PUBLICATION everything FOR ALL TABLES")
}

func fill(ctx context.Context, url, more string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	if _, err := schema.Up(ctx, conn, schema.UpConfig{}); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, more)
	return err
}

func (db DB) Config() *pgx.ConnConfig {
	db.T.Helper()
	cfg, err := pgx.ParseConfig(db.URL)
	if err != nil {
		db.T.Fatal(err)
	}
	return cfg
}

// Connect opens a connection for as long as the test runs.
func (db DB) Connect() *pgx.Conn {
	db.T.Helper()
	conn, err := pgx.Connect(db.T.Context(), db.URL)
	if err != nil {
		db.T.Fatal(err)
	}
	db.T.Cleanup(func() { hangUp(conn) })
	return conn
}

// Exec runs statements on a connection of their own.
func (db DB) Exec(sql string, args ...any) {
	db.T.Helper()
	conn := db.Connect()
	defer hangUp(conn)
	if _, err := conn.Exec(db.T.Context(), sql, args...); err != nil {
		db.T.Fatalf("%s: %v", sql, err)
	}
}

// Value is the only value that a query returns, as text.
func (db DB) Value(sql string, args ...any) string {
	db.T.Helper()
	conn := db.Connect()
	defer hangUp(conn)
	var v any
	if err := conn.QueryRow(db.T.Context(), sql, args...).Scan(&v); err != nil {
		db.T.Fatalf("%s: %v", sql, err)
	}
	return fmt.Sprint(v)
}

// Await asks a query again, on one connection, until its only value is true, neither false nor NULL.
func (db DB) Await(sql string, args ...any) {
	db.T.Helper()
	conn := db.Connect()
	defer hangUp(conn)
	await.Until(db.T, sql, db.is(conn, sql, args...))
}

// AwaitSoon is Await with the limit of [await.Soon].
func (db DB) AwaitSoon(sql string, args ...any) {
	db.T.Helper()
	conn := db.Connect()
	defer hangUp(conn)
	await.UntilSoon(db.T, sql, db.is(conn, sql, args...))
}

// is asks for a condition.
func (db DB) is(conn *pgx.Conn, sql string, args ...any) func() bool {
	return func() bool {
		db.T.Helper()
		var done *bool
		if err := conn.QueryRow(db.T.Context(), sql, args...).Scan(&done); err != nil {
			db.T.Fatalf("%s: %v", sql, err)
		}
		return done != nil && *done
	}
}

func hangUp(conn *pgx.Conn) { _ = conn.Close(context.Background()) }
