package wal

import (
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
)

func TestMain(m *testing.M) { servers.Main(m) }
