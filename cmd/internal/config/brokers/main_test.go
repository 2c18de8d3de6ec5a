package brokers_test

import (
	"os"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }
