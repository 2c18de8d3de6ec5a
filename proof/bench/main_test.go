package main

import (
	"os"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig/rigtest"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "part" {
		main() // a process of a benchmark that a test runs
		return
	}
	os.Exit(rigtest.Run(m))
}

// config is of one round on the shared servers.
func config(t *testing.T, bench, broker string) Config {
	t.Helper()
	c := Config{Bench: bench, Broker: broker, Rounds: 1, Postgres: servers.TestPostgres(t).URL("postgres"),
		Version: "test", Progress: t.Output()}
	switch broker {
	case "kafka":
		c.Address = servers.TestKafka(t).Addr()
	case "nats":
		c.Address = servers.TestNATS(t).URL()
	}
	c.Binary = rigtest.Binary(t)
	return c
}

func latencyConfig(t *testing.T, broker string) Config {
	t.Helper()
	c := config(t, "latency", broker)
	c.Rates, c.For, c.WarmUp, c.Idle = []int{300}, time.Second, 300*time.Millisecond, 100*time.Millisecond
	c.Busy = 1
	return c
}

// openedBed is what a drain's contenders run on.
func openedBed(t *testing.T, broker string) *bed {
	t.Helper()
	cfg := config(t, "drain", broker)
	b, err := openBed(t.Context(), &cfg, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return b
}
