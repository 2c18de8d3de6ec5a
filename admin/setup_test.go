package admin

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox/admin/internal/admintest"
	"github.com/pgoutbox/outbox/internal/servers"
)

var (
	_ DB = (*pgx.Conn)(nil)
	_ DB = (*pgxpool.Pool)(nil)
)

func TestMain(m *testing.M) { servers.Main(m) }

type database struct{ *admintest.Database }

func setup(t *testing.T) *database {
	t.Helper()
	return &database{admintest.New(t)}
}
