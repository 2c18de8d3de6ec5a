package pgfetch

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFetchRefusesAVersionThatTheArchivesDontUse(t *testing.T) {
	t.Parallel()
	err := Fetch(t.Context(), "18", filepath.Join(t.TempDir(), "pg"), nil)
	if err == nil || !strings.Contains(err.Error(), "three numbers") {
		t.Fatalf("Fetch(18) = %v, want an error that says what a version looks like", err)
	}
}

func TestFetchLeavesAPresentServerAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"postgres", "initdb"} {
		if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "bin", name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var progress strings.Builder
	if err := Fetch(t.Context(), "18.6.0", dir, &progress); err != nil {
		t.Fatal(err)
	}
	if progress.Len() > 0 {
		t.Errorf("a present server made progress: %s", progress.String())
	}
}

func TestFetchStopsWithItsContextAndLeavesNoServer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := filepath.Join(t.TempDir(), "cache", "pg")
	if err := Fetch(ctx, "18.6.0", dir, nil); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Fatalf("Fetch after cancel = %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a cancelled Fetch installed a server")
	}
}
