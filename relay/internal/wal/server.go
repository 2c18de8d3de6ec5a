package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay/internal/dial"
	"github.com/pgoutbox/outbox/schema"
)

// Why a server or a role can't be used. Errors that wrap these are marked by outbox.Permanent.
var (
	// ErrWALLevel says that the server doesn't write what logical decoding needs.
	ErrWALLevel = errors.New("wal_level is not logical")

	// ErrNoReplication says that the role may not stream.
	ErrNoReplication = errors.New("the role has no right to replicate")

	// ErrPooler says that a pooler stands before the server that doesn't let replication connections pass.
	ErrPooler = errors.New("the address leads to a connection pooler")

	// ErrNoSlotFree says that max_replication_slots are in use.
	ErrNoSlotFree = errors.New("all replication slots are in use")
)

const hangUpTimeout = 2 * time.Second

// connect opens an ordinary connection.
func (s *Source) connect(ctx context.Context) (*pgx.Conn, error) {
	return dial.Session(ctx, s.conn, applicationPrefix+s.destination, dial.Setting{Name: "search_path", Value: "pg_catalog"})
}

// walConn is a connection that can stream, and what pgx reads it through.
type walConn struct {
	*pgconn.PgConn
	in io.Reader
}

// connectWAL opens a connection that can stream. A pooler that doesn't pass on such a connection says so, or, where
// it was told to ignore the parameter, gives an ordinary one, on which no command of replication is known.
func (s *Source) connectWAL(ctx context.Context) (*walConn, error) {
	cfg := s.conn.Config.Copy()
	if cfg.RuntimeParams == nil {
		cfg.RuntimeParams = make(map[string]string)
	}
	cfg.RuntimeParams["application_name"] = dial.ApplicationName(applicationPrefix + s.destination)
	cfg.RuntimeParams["replication"] = "database"
	conn := &walConn{}
	build := cfg.BuildFrontend
	cfg.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		conn.in = r // of the last attempt, which is the one that succeeds
		return build(r, w)
	}
	var err error
	if conn.PgConn, err = pgconn.ConnectConfig(ctx, cfg); err != nil {
		return nil, s.explainConnect(err)
	}
	if err := conn.Exec(ctx, "IDENTIFY_SYSTEM").Close(); err != nil {
		hangUpWAL(conn)
		return nil, s.explainConnect(err)
	}
	return conn, nil
}

const applicationPrefix = "outbox stream "

func (s *Source) explainConnect(err error) error {
	switch state := sqlState(err); {
	case state == "42501":
		return outbox.Permanent(fmt.Errorf("%w: as a superuser run: ALTER ROLE %s REPLICATION (managed services have a role to grant instead, as rds_replication): %w",
			ErrNoReplication, pgx.Identifier{s.conn.User}.Sanitize(), err))
	case state == "53300":
		return fmt.Errorf("no room for another stream: raise max_wal_senders: %w", err)
	case strings.Contains(err.Error(), "unsupported startup parameter") || state == "42601":
		return outbox.Permanent(fmt.Errorf("%w, which passes on no replication connection (PgBouncer does since 1.23): "+
			"give this relay the address of the server itself: %w", ErrPooler, err))
	case state == "28000":
		return outbox.Permanent(fmt.Errorf("%w from this host: pg_hba.conf has to allow role %s a logical replication connection to database %s: %w",
			ErrNoReplication, s.conn.User, s.conn.Database, err))
	}
	return fmt.Errorf("connect for replication: %w", err)
}

// preflight refuses what no waiting cures.
func (s *Source) preflight(ctx context.Context, conn *pgx.Conn) error {
	var level string
	if err := conn.QueryRow(ctx, "SELECT current_setting('wal_level')").Scan(&level); err != nil {
		return fmt.Errorf("ask for wal_level: %w", err)
	}
	if level != "logical" {
		return outbox.Permanent(fmt.Errorf("%w but %s: run ALTER SYSTEM SET wal_level = logical and restart the server, or use the strategy snapshot, which needs no setting",
			ErrWALLevel, level))
	}
	if !s.cfg.Emitted {
		return nil
	}
	revoke, err := schema.EmitsOpen(ctx, conn)
	if err != nil {
		return err
	}
	if revoke != "" {
		s.cfg.Table.Logger.Warn("every role of this database can publish: emitted messages are delivered, and PUBLIC may execute pg_logical_emit_message",
			"destination", s.destination, "next", "a superuser runs, in this database: "+revoke+" and what outbox migrate grants --emitter prints for those who are to")
	}
	return nil
}

// refuseFull returns ErrNoSlotFree when another slot can't be made.
func refuseFull(ctx context.Context, conn *pgx.Conn) error {
	var full bool
	err := conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM pg_replication_slots) >= current_setting('max_replication_slots')::integer`).Scan(&full)
	if err != nil {
		return fmt.Errorf("count the replication slots: %w", err)
	}
	if full {
		return outbox.Permanent(fmt.Errorf("%w: drop one that nobody needs (SELECT slot_name, active, wal_status FROM pg_replication_slots), or raise max_replication_slots and restart the server",
			ErrNoSlotFree))
	}
	return nil
}

func hangUp(conn *pgx.Conn) { dial.HangUp(conn) }

func hangUpWAL(conn *walConn) {
	ctx, cancel := context.WithTimeout(context.Background(), hangUpTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}
