package session

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
)

// Runner runs verbs.
type Runner interface {
	Run(ctx context.Context, v verbs.Verb, actor string, params any) (any, error)
	Close()
}

// Runner connects to what the flags and the environment name.
func (s *Session) Runner(ctx context.Context) (Runner, error) {
	if server := s.Server(); server != "" {
		r, err := s.remote(server)
		return r, err
	}
	conn, err := s.Operate(ctx)
	if err != nil {
		return nil, err
	}
	return Direct{conn}, nil
}

// Direct runs verbs on the database itself.
type Direct struct{ Conn *pgx.Conn }

func (d Direct) Run(ctx context.Context, v verbs.Verb, actor string, params any) (any, error) {
	return v.Run(ctx, d.Conn, actor, params)
}

func (d Direct) Close() { connect.Close(d.Conn) }
