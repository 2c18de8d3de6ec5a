// Package wal reads the write-ahead log of a database, by logical decoding with the plugin pgoutput.
package wal

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

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// Server is the server whose log is read, and the name of the connection in pg_stat_activity.
type Server struct {
	Conn *pgx.ConnConfig
	Name string
}

const applicationPrefix = "outbox stream "

// application is the application_name of the stream as the server keeps it.
func (s Server) application() string { return dial.ApplicationName(applicationPrefix + s.Name) }

// Connect opens an ordinary connection.
func (s Server) Connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	return dial.Session(ctx, s.Conn, applicationPrefix+s.Name, dial.Setting{Name: "search_path", Value: "pg_catalog"})
}

// Conn is a connection that can stream.
type Conn struct {
	*pgconn.PgConn
	in io.Reader // pgx reads the connection through it
}

// ConnectWAL opens a connection that can stream. Some poolers refuse such a connection. Others, which were told to
// ignore the parameter, give an ordinary one, which knows no replication commands.
func (s Server) ConnectWAL(ctx context.Context) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	cfg := s.Conn.Config.Copy()
	if cfg.RuntimeParams == nil {
		cfg.RuntimeParams = make(map[string]string)
	}
	cfg.RuntimeParams["application_name"] = s.application()
	cfg.RuntimeParams["replication"] = "database"
	conn := &Conn{}
	build := cfg.BuildFrontend
	cfg.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		conn.in = r // the reader of the last attempt, which is the one that succeeds
		return build(r, w)
	}
	var err error
	if conn.PgConn, err = pgconn.ConnectConfig(ctx, cfg); err != nil {
		return nil, s.explain(err)
	}
	if err := conn.Exec(ctx, "IDENTIFY_SYSTEM").Close(); err != nil {
		conn.HangUp()
		return nil, s.explain(err)
	}
	if err := dial.Unbound(ctx, conn.PgConn); err != nil { // a slot waits for the transactions that are open
		conn.HangUp()
		return nil, err
	}
	return conn, nil
}

// ErrMayNotStream means that the role has no right to replicate.
var ErrMayNotStream = errors.New("the role has no right to replicate")

// Probe opens a replication connection and ends it. A server that has no room for another one is well if the slot is
// being read: that is the relay's own stream. If the slot is missing, there has to be room for it.
func (s Server) Probe(ctx context.Context, conn *pgx.Conn, slot string) error {
	var there, active, full bool
	err := conn.QueryRow(ctx, `SELECT coalesce(bool_or(slot_name = $1), false), coalesce(bool_or(slot_name = $1 AND active), false),
		count(*) >= current_setting('max_replication_slots')::integer FROM pg_replication_slots`, slot).Scan(&there, &active, &full)
	if err != nil {
		return fmt.Errorf("look at the slots: %w", err)
	}
	if !there && full {
		err = errFull()
	}
	stream, streamErr := s.ConnectWAL(ctx)
	if streamErr == nil {
		stream.HangUp()
	} else if active && sqlstate.Of(streamErr) == "53300" {
		streamErr = nil
	}
	return errors.Join(streamErr, err)
}

// RefuseFull refuses a server that has no room for another slot.
func RefuseFull(ctx context.Context, conn *pgx.Conn) error {
	var full bool
	err := conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM pg_replication_slots) >= current_setting('max_replication_slots')::integer`).Scan(&full)
	if err != nil {
		return fmt.Errorf("count the replication slots: %w", err)
	}
	if full {
		return errFull()
	}
	return nil
}

func errFull() error {
	return dial.Permanent("all replication slots are in use: drop one that is not needed (SELECT slot_name, active, wal_status " +
		"FROM pg_replication_slots), or raise max_replication_slots and restart the server")
}

// HangUp closes a connection that is no longer needed.
func (c *Conn) HangUp() {
	ctx, cancel := context.WithTimeout(context.Background(), dial.HangUpTimeout)
	defer cancel()
	_ = c.Close(ctx)
}

// explain adds to an error of the server what to do. Everything that it names can be repaired while the relay runs. The
// texts of the server are in its language, so two reasons with the same code are told apart by the server's routine.
func (s Server) explain(err error) error {
	var routine string
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		routine = answer.Routine
	}
	switch state := sqlstate.Of(err); {
	case state == "42501":
		return dial.Permanent("%w: as a superuser run: ALTER ROLE %s REPLICATION "+
			"(managed services have a role to grant instead, as rds_replication): %w",
			ErrMayNotStream, pgx.Identifier{s.Conn.User}.Sanitize(), err)
	case state == "53300" && routine == "InitProcess":
		return fmt.Errorf("no room for another stream: end one that is not needed (SELECT application_name, client_addr FROM "+
			"pg_stat_replication), or raise max_wal_senders and restart the server: %w", err)
	case strings.Contains(err.Error(), "unsupported startup parameter") || state == "42601":
		return dial.Permanent("the address leads to a connection pooler, which passes on no replication connection "+
			"(PgBouncer does since 1.23): give this relay the address of the server itself: %w", err)
	case state == "28000" && routine == "ClientAuthentication":
		return dial.Permanent("the role has no right to replicate from this host: pg_hba.conf has to allow role %s a logical "+
			"replication connection to database %s: %w", s.Conn.User, s.Conn.Database, err)
	}
	return fmt.Errorf("connect for replication: %w", err)
}

// RefuseLevel returns an error, marked by outbox.Permanent, if the server's wal_level is too low for logical decoding.
func RefuseLevel(ctx context.Context, conn *pgx.Conn) error {
	var level string
	if err := conn.QueryRow(ctx, "SELECT current_setting('wal_level')").Scan(&level); err != nil {
		return fmt.Errorf("ask for wal_level: %w", err)
	}
	if level != "logical" {
		return dial.Permanent("wal_level is not logical but %s: run ALTER SYSTEM SET wal_level = logical and restart the server, "+
			"or use a strategy that reads the table, as snapshot, which needs no setting", level)
	}
	return nil
}

// StatusInterval is how often an idle reader has to send the server a status.
func StatusInterval(ctx context.Context, conn *pgx.Conn) (time.Duration, error) {
	const longest = 10 * time.Second
	var timeout int64 // milliseconds, 0 for none
	err := conn.QueryRow(ctx, `SELECT coalesce((SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'), 0)`).Scan(&timeout)
	if err != nil {
		return 0, fmt.Errorf("ask for wal_sender_timeout: %w", err)
	}
	if timeout <= 0 {
		return longest, nil
	}
	return max(min(time.Duration(timeout)*time.Millisecond/3, longest), 10*time.Millisecond), nil
}
