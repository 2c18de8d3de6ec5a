package session

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/schema"
)

// Parse reads the address. Its error repeats nothing that may be a piece of a password.
func (s *Session) Parse(at Address) (*pgx.ConnConfig, error) {
	s.secrets.add(at.URL)
	if complaint := connect.Complaint(at.URL); complaint != "" {
		return nil, exit.With(exit.Config, fmt.Errorf("%s can't be used as the address of a database: %s", at.Origin, complaint))
	}
	cfg, err := pgx.ParseConfig(at.URL)
	if err != nil {
		return nil, exit.With(exit.Config, fmt.Errorf("%s can't be used as the address of a database", at.Origin))
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 10 * time.Second
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "outbox"
	}
	cfg.RuntimeParams["client_encoding"] = "UTF8" // otherwise it is the database's
	return cfg, nil
}

// Connect opens a connection; the caller closes it. Its errors say what to do.
func (s *Session) Connect(ctx context.Context) (*pgx.Conn, error) {
	at, err := s.Database(ctx)
	if err != nil {
		return nil, err
	}
	return s.open(ctx, at)
}

func (s *Session) open(ctx context.Context, at Address) (*pgx.Conn, error) {
	if at.Err != nil {
		return nil, at.Err
	}
	cfg, err := s.Parse(at)
	if err != nil {
		return nil, err
	}
	return connect.Open(ctx, cfg, at.Origin)
}

// On makes what a command does on a database what cobra runs: open connects, and the connection is closed in the end.
func (s *Session) On(open func(context.Context) (*pgx.Conn, error),
	do func(context.Context, *pgx.Conn, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		conn, err := open(cmd.Context())
		if err != nil {
			return err
		}
		defer connect.Close(conn)
		return do(cmd.Context(), conn, args)
	}
}

// Operate connects for an operator's command and makes sure that the schema is there.
func (s *Session) Operate(ctx context.Context) (*pgx.Conn, error) {
	at, err := s.Database(ctx)
	if err != nil {
		return nil, err
	}
	return s.operateOn(ctx, at)
}

func (s *Session) operateOn(ctx context.Context, at Address) (*pgx.Conn, error) {
	conn, err := s.open(ctx, at)
	if err != nil {
		return nil, err
	}
	up := health.OnDatabase("outbox migrate up", at.Name)
	state, err := schema.Status(ctx, conn)
	switch {
	case err != nil:
	case state.Version == 0:
		err = fmt.Errorf("%w in database %q: run: %s", schema.ErrMissing, state.Database, up)
	case state.Version < state.Latest:
		err = fmt.Errorf("%w: database %q has version %d, and this program needs %d: run: %s",
			schema.ErrOutdated, state.Database, state.Version, state.Latest, up)
	case state.TooNew():
		err = fmt.Errorf("%w: database %q has version %d, and this program knows versions up to %d: use a newer program",
			schema.ErrTooNew, state.Database, state.Version, state.Latest)
	default:
		return conn, nil
	}
	connect.Close(conn)
	return nil, err
}
