package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/proof/rig/rigtest"
)

// top is the folder with everything.
const top = "../.."

func TestMain(m *testing.M) { os.Exit(rigtest.Run(m)) }

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

// validate has the program check a configuration. That a variable of the environment isn't used is a fault of the
// package.
func validate(t *testing.T, config string, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), rigtest.Binary(t), "config", "validate", "--config", config)
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "is not used") {
		t.Fatalf("%s: %v\n%s", config, err, out)
	}
}
