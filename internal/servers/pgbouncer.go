package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/child"
)

// PgBouncerConfig configures a pooler.
type PgBouncerConfig struct {
	// Server is the address, host:port, of the PostgreSQL behind it. Required.
	Server string

	// Settings win over what a pooler has otherwise: pool_mode=transaction, and every client is let in as
	// the superuser postgres.
	Settings map[string]string
}

// PgBouncer is a connection pooler before a PostgreSQL server, on 127.0.0.1.
type PgBouncer struct {
	Server
}

// StartPgBouncer starts a pooler and returns when it takes connections; the server behind it need not be
// there. The caller must Close it. The error wraps [ErrNotFound] when PgBouncer isn't installed.
func StartPgBouncer(ctx context.Context, config PgBouncerConfig) (*PgBouncer, error) {
	path, err := FindPgBouncer()
	b := &PgBouncer{}
	file := func() string { return filepath.Join(b.folder, "pgbouncer.ini") }
	return orNone(b, b.launch(ctx, err, kind{
		name: "PgBouncer",
		uid:  postgresUID(), // it refuses to run as root, as PostgreSQL does
		place: func() error {
			text, err := b.ini(config)
			if err != nil {
				return err
			}
			return errors.Join(os.WriteFile(file(), []byte(text), 0o600), give(file(), b.uid))
		},
		command: func() child.Command { return child.Command{Path: path, Args: []string{file()}} },
		ready: func(ctx context.Context, addr string) error {
			conn, err := dial(ctx, addr)
			if err != nil {
				return err
			}
			return conn.Close()
		},
	}))
}

// OwnPgBouncer returns a pooler that is the test's alone, closed at its end.
func OwnPgBouncer(t testing.TB, config PgBouncerConfig) *PgBouncer {
	t.Helper()
	return own(t, StartPgBouncer, []PgBouncerConfig{config})
}

func (b *PgBouncer) ini(config PgBouncerConfig) (string, error) {
	host, port, err := net.SplitHostPort(config.Server)
	if err != nil {
		return "", fmt.Errorf("the server behind it: %w", err)
	}
	head := fmt.Sprintf("[databases]\n* = host=%s port=%s user=postgres\n[pgbouncer]\n", host, port)
	return head + settings("%s = %s", map[string]string{
		"listen_addr":               "127.0.0.1",
		"listen_port":               strconv.Itoa(b.Port()),
		"unix_socket_dir":           "",
		"auth_type":                 "any",
		"pool_mode":                 "transaction",
		"default_pool_size":         "30",
		"max_client_conn":           "500",
		"ignore_startup_parameters": "extra_float_digits",
		// After a failure to connect it makes everybody wait for 15 s by default.
		"server_login_retry": "1",
	}, config.Settings), nil
}

// URL returns the address of a database by way of the pooler, for the superuser. Transaction mode and older
// versions know no prepared statements, so pgx describes them anew.
func (b *PgBouncer) URL(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: b.addr, Path: "/" + database,
		RawQuery: "sslmode=disable&default_query_exec_mode=" + pgx.QueryExecModeExec.String()}
	return u.String()
}

// FindPgBouncer returns the path of the newest PgBouncer that is at hand.
func FindPgBouncer() (string, error) {
	if path := lookUp("pgbouncer", "/usr/sbin/pgbouncer", "/opt/homebrew/bin/pgbouncer"); path != "" {
		return path, nil
	}
	return "", fmt.Errorf("pgbouncer is %w; on Debian and Ubuntu: sudo apt-get install pgbouncer", ErrNotFound)
}
