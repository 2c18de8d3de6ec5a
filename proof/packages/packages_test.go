package packages

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig"
)

// top is the folder with everything.
const top = "../.."

var folder string // of what all tests share

func TestMain(m *testing.M) {
	code, err := main(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func main(m *testing.M) (code int, err error) {
	if folder, err = os.MkdirTemp("", "outbox-packages-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(folder)
	return servers.Run(m), nil
}

var build = sync.OnceValues(func() (string, error) { return rig.Build(context.Background(), folder) })

// binary returns the path of the program as it is released.
func binary(t *testing.T) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs a program to its end and returns what it writes to standard output.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.Output()
	if err != nil {
		var said []byte
		if exit, ok := err.(*exec.ExitError); ok {
			said = exit.Stderr
		}
		t.Fatalf("%s %q: %v\n%s%s", name, args, err, out, said)
	}
	return string(out)
}

// file writes one, with its folders, and returns its path.
func file(t *testing.T, text []byte, path ...string) string {
	t.Helper()
	at := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return at
}

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// validate has the program check a configuration.
func validate(t *testing.T, config string, env ...string) {
	t.Helper()
	run(t, t.TempDir(), env, binary(t), "config", "validate", "--config", config)
}
