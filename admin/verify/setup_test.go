package verify

import (
	"testing"

	"github.com/pgoutbox/outbox/admin/internal/admintest"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestMain(m *testing.M) { servers.Main(m) }

type database struct{ *admintest.Database }

func setup(t *testing.T) *database {
	t.Helper()
	return &database{admintest.New(t)}
}
