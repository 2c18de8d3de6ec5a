package health

import (
	"testing"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/internal/admintest"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestMain(m *testing.M) { servers.Main(m) }

type database struct{ *admintest.Database }

func setup(t *testing.T, config ...servers.PostgresConfig) *database {
	t.Helper()
	return &database{admintest.New(t, config...)}
}

var anna = admin.Action{Actor: "anna@example", Reason: "the broker is mended"}

func (d *database) status() *Report {
	d.T.Helper()
	r, err := Status(d.T.Context(), d.Conn)
	if err != nil {
		d.T.Fatal(err)
	}
	return r
}
