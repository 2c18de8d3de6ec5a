package migrate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/cmd/internal/session"
	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// execute runs statements that grant and revoke as one transaction.
func execute(ctx context.Context, s *session.Session, sql string) error {
	at, err := s.Database(ctx)
	if err != nil {
		return err
	}
	cfg, err := s.Parse(at)
	if err != nil {
		return err
	}
	// To a role that may not give a right, the server only says so in a warning, and goes on.
	var warned []string
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Code == "01007" || n.Code == "01006" {
			warned = append(warned, n.Message)
		}
	}
	conn, err := connect.Open(ctx, cfg, at.Origin)
	if err != nil {
		return err
	}
	defer connect.Close(conn)
	err = conn.PgConn().Exec(ctx, "BEGIN;\n"+sql).Close()
	if sqlstate.Of(err) == "42501" || err == nil && len(warned) > 0 {
		owner, user := "the owner of schema outbox", conn.Config().User
		_, _ = conn.Exec(ctx, `ROLLBACK`)
		// Without the name the repair is still right.
		_ = conn.QueryRow(ctx, `SELECT format('%I, the owner of schema outbox', nspowner::regrole::text), current_user
			FROM pg_namespace WHERE nspname = 'outbox'`).Scan(&owner, &user)
		if err == nil {
			err = fmt.Errorf("the server says: %s", warned[0])
		}
		return fmt.Errorf("nothing was changed, because %q may not give these rights: run it as %s, by --database-url: %w",
			user, owner, err)
	}
	if err == nil {
		_, err = conn.Exec(ctx, `COMMIT`)
	}
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	fmt.Fprintln(s.Stderr, "done")
	return nil
}

// A lock that others hold is not waited for long, because others wait behind.
const lockTimeout = "SET LOCAL lock_timeout = '5s';\n"
