// Package connect connects to the database that holds the outbox, and says what to do where that fails.
package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox/cmd/internal/bounds"
	"github.com/pgoutbox/outbox/internal/dial"
)

// Open opens a connection, with the settings of [dial.Operate]; the caller closes it. origin says where the address was
// found. Its errors say what to do.
func Open(ctx context.Context, cfg *pgx.ConnConfig, origin string) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, &unreachable{explain(err, cfg, origin)}
	}
	if err := dial.Operate(ctx, conn); err != nil {
		Close(conn)
		return nil, &unreachable{explain(err, cfg, origin)}
	}
	return conn, nil
}

// unreachable is why no connection could be made.
type unreachable struct{ error }

func (u *unreachable) Unwrap() error { return u.error }

// Unreachable reports whether the database can't be connected to, or doesn't answer: then no relay can work with it
// either.
func Unreachable(err error) bool {
	var u *unreachable
	return errors.As(err, &u) || errors.Is(err, context.DeadlineExceeded)
}

// explain turns the usual failures to connect into what to do about them.
func explain(err error, cfg *pgx.ConnConfig, origin string) error {
	where := fmt.Sprintf("%s:%d", cfg.Host, cfg.Port)
	if strings.HasPrefix(cfg.Host, "/") {
		where = cfg.Host
	}
	var pgErr *pgconn.PgError
	var dns *net.DNSError
	var full *bounds.ErrConnections
	switch {
	case errors.As(err, &full):
		return full
	case errors.As(err, &pgErr) && (pgErr.Code == "28P01" || pgErr.Code == "28000"):
		return fmt.Errorf("PostgreSQL at %s refuses user %q: %s: check user and password in %s, and the server's pg_hba.conf",
			where, cfg.User, pgErr.Message, origin)
	case errors.As(err, &pgErr) && pgErr.Code == "3D000":
		return fmt.Errorf("PostgreSQL at %s has no database %q: create it, or correct %s", where, cfg.Database, origin)
	case errors.As(err, &pgErr) && pgErr.Code == "53300":
		return fmt.Errorf("PostgreSQL at %s has no free connection: %s: raise max_connections or close some", where, pgErr.Message)
	case errors.As(err, &pgErr) && pgErr.Code == "42704":
		return fmt.Errorf("PostgreSQL at %s refuses what %s has as a parameter: %s: take it out there", where, origin, pgErr.Message)
	case errors.As(err, &pgErr):
		return fmt.Errorf("connect to PostgreSQL at %s: %w", where, pgErr)
	case errors.As(err, &dns):
		return fmt.Errorf("the host %q of %s is not known: %w", cfg.Host, origin, dns)
	case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("no PostgreSQL listens at %s: start it, or correct %s", where, origin)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("PostgreSQL at %s does not answer: check the address in %s and firewalls on the way: %w", where,
			origin, context.DeadlineExceeded)
	}
	return fmt.Errorf("connect to PostgreSQL at %s, from %s: %w", where, origin, err)
}

// Close closes a connection, and waits for that a second at most.
func Close(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // nothing is left that it could lose
}
