package load_test

import (
	"flag"
	"os"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config/internal/configtest"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// golden compares with a file that `go test ./internal/config/load -update` writes.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; go test ./internal/config/load -update writes it", err)
	}
	if got != string(want) {
		t.Errorf("differs from %s; after checking, go test ./internal/config/load -update writes it\n got:\n%s\nwant:\n%s", file, got, want)
	}
}

const minimal = configtest.Minimal
