// Package examples holds the README's programs, each a folder, and the test that runs them.
package examples

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/outboxtest"
)

func TestMain(m *testing.M) { servers.Main(m) }

func build(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", path, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

func TestTheReadmesProgramsStandThereAsTheyAre(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"write", "inprocess"} {
		source, err := os.ReadFile(filepath.Join(name, "main.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(readme), "```go\n"+string(source)+"```\n") {
			t.Errorf("README.md does not show %s/main.go as it is", name)
		}
	}
}

func TestTheReadmesProgramsRun(t *testing.T) {
	url := servers.TestDatabase(t)
	outboxtest.Migrate(t, url)
	write := exec.Command(build(t, "write"))
	write.Env = append(os.Environ(), "DATABASE_URL="+url)
	out, err := write.CombinedOutput()
	if err != nil || string(out) != "order-1 is placed, its event will follow\n" {
		t.Fatalf("%v: %s", err, out)
	}

	ctx := await.Context(t)
	deliver := exec.CommandContext(ctx, build(t, "inprocess"))
	deliver.Env = append(os.Environ(), "DATABASE_URL="+url)
	deliver.Stderr = os.Stderr
	stdout, err := deliver.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := deliver.Start(); err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for lines := bufio.NewScanner(stdout); len(keys) < 2 && lines.Scan(); {
		var m struct{ Topic, Key string }
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil || m.Topic != "orders" {
			t.Errorf("line %s: %v", lines.Text(), err)
		}
		keys[m.Key] = true
	}
	if !keys["order-1"] || !keys["order-2"] {
		t.Errorf("delivered %v, want order-1 and order-2", keys)
	}
	if err := deliver.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := deliver.Wait(); err != nil {
		t.Errorf("it did not end well: %v", err)
	}
}
