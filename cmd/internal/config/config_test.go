package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config"
)

// write puts a file into a folder of its own.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// try reads a file with this text. Messages call it outbox.yaml.
func try(t *testing.T, text string, in config.Input) (*config.Loaded, string) {
	t.Helper()
	in.File = write(t, "outbox.yaml", text)
	if in.Hostname == "" {
		in.Hostname = "host"
	}
	l, err := config.Load(in)
	if err == nil {
		return l, ""
	}
	var faults config.Faults
	if !errors.As(err, &faults) || len(faults) == 0 {
		t.Fatalf("error of type %T: %v", err, err)
	}
	return nil, strings.ReplaceAll(err.Error(), filepath.Dir(in.File)+"/", "")
}

func mustLoad(t *testing.T, text string, in config.Input) *config.Loaded {
	t.Helper()
	l, fault := try(t, text, in)
	if fault != "" {
		t.Fatal(fault)
	}
	return l
}

// destination indents what is to stand within the only destination.
func destination(text string) string {
	return "database: {url: postgres://app@db/app}\ndestinations:\n  - name: orders\n" +
		"    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") + "\n"
}

// minimal is a valid file that leaves everything else at its default.
const minimal = `
database: {url: postgres://app@db/app}
destinations:
  - name: orders
    broker: {stdout: {}}
`
