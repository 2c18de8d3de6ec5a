package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/child"
)

// PgBouncerConfig says what kind of pooler is wanted.
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
	if err := canStart(); err != nil {
		return nil, err
	}
	path, err := FindPgBouncer()
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{}
	b.name = "PgBouncer"
	b.stopSig = syscall.SIGTERM
	uid := postgresUID() // it refuses to run as root, as PostgreSQL does
	if b.folder, err = newFolder("pgbouncer", uid); err != nil {
		return nil, fmt.Errorf("start %s: %w", b.name, err)
	}
	file := filepath.Join(b.folder, "pgbouncer.ini")
	b.command = func() child.Command {
		return child.Command{Path: path, Args: []string{file}, Dir: b.folder, UID: uid}
	}
	b.ready = func(ctx context.Context) error {
		conn, err := net.DialTimeout("tcp", b.addr, time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	err = b.startFirst(ctx, 1, func(ports []int) error {
		text, err := pgBouncerINI(ports[0], config)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		return give(file, uid)
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", b.name, errors.Join(err, b.Close()))
	}
	return b, nil
}

func pgBouncerINI(port int, config PgBouncerConfig) (string, error) {
	host, serverPort, err := net.SplitHostPort(config.Server)
	if err != nil {
		return "", fmt.Errorf("the server behind it: %w", err)
	}
	settings := map[string]string{
		"listen_addr":               "127.0.0.1",
		"listen_port":               strconv.Itoa(port),
		"unix_socket_dir":           "",
		"auth_type":                 "any",
		"pool_mode":                 "transaction",
		"default_pool_size":         "30",
		"max_client_conn":           "500",
		"ignore_startup_parameters": "extra_float_digits",
		// After a failure to connect it makes everybody wait for 15 s by default.
		"server_login_retry": "1",
	}
	maps.Copy(settings, config.Settings)
	var text strings.Builder
	fmt.Fprintf(&text, "[databases]\n* = host=%s port=%s user=postgres\n[pgbouncer]\n", host, serverPort)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = %s\n", name, settings[name])
	}
	return text.String(), nil
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
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer", "/opt/homebrew/bin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("pgbouncer is %w; on Debian and Ubuntu: sudo apt-get install pgbouncer", ErrNotFound)
}
