package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "part" {
		main() // a process of a benchmark that a test runs
		return
	}
	code := servers.Run(m)
	if program.folder != "" {
		os.RemoveAll(program.folder)
	}
	os.Exit(code)
}

// program is "outbox", built once for all tests.
var program struct {
	sync.Once
	folder string
	err    error
}

func builtProgram(t *testing.T) string {
	t.Helper()
	program.Do(func() {
		if program.folder, program.err = os.MkdirTemp("", "pgoutbox-bench-test-"); program.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", filepath.Join(program.folder, "outbox"), "github.com/pgoutbox/outbox/cmd/outbox")
		if out, err := build.CombinedOutput(); err != nil {
			program.err = fmt.Errorf("build the program: %w\n%s", err, out)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return filepath.Join(program.folder, "outbox")
}

// common is what a benchmark of a test runs on: the shared servers.
func common(t *testing.T, broker string) Common {
	t.Helper()
	c := Common{Broker: broker, Rounds: 1, Postgres: servers.TestPostgres(t).URL("postgres"), Version: "test", Progress: t.Output()}
	switch broker {
	case "kafka":
		c.Address = servers.TestKafka(t).Addr()
	case "nats":
		c.Address = servers.TestNATS(t).URL()
	}
	c.Binary = builtProgram(t)
	return c
}
