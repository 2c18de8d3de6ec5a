// Package configtest is what tests of the configuration share.
package configtest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
)

// Write puts a file into a folder of its own.
func Write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Try reads a file with this text. Messages call it outbox.yaml.
func Try(t *testing.T, text string, in load.Input) (*load.Loaded, string) {
	t.Helper()
	in.File = Write(t, "outbox.yaml", text)
	if in.Hostname == "" {
		in.Hostname = "host"
	}
	l, err := load.Config(in)
	if err == nil {
		return l, ""
	}
	var faults findings.Faults
	if !errors.As(err, &faults) || len(faults) == 0 {
		t.Fatalf("error of type %T: %v", err, err)
	}
	return nil, strings.ReplaceAll(err.Error(), filepath.Dir(in.File)+"/", "")
}

func Load(t *testing.T, text string, in load.Input) *load.Loaded {
	t.Helper()
	l, fault := Try(t, text, in)
	if fault != "" {
		t.Fatal(fault)
	}
	return l
}

// Destination indents what is to stand within the only destination.
func Destination(text string) string {
	return "database: {url: postgres://app@db/app}\ndestinations:\n  - name: orders\n" +
		"    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") + "\n"
}

// Minimal is a valid file that leaves everything else at its default.
const Minimal = `
database: {url: postgres://app@db/app}
destinations:
  - name: orders
    broker: {stdout: {}}
`
