package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/servers"
)

// One deck: every kind of fault once, on either broker. make nemesis runs as many as are wanted.
func TestEveryKindOfFaultKeepsThePromises(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real servers: run make test")
	}
	results, err := runAll(t.Context(), options{seed: 1, runs: int(deckSeeds()), sites: 2, keep: os.TempDir()}, missing(t), func(r result) { t.Log(r) })
	if errors.Is(err, servers.ErrNotFound) && !required() && os.Getenv("CI") == "" {
		t.Skipf("%v: run make servers", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != int(deckSeeds()) {
		t.Errorf("%d of %d runs were made", len(results), deckSeeds())
	}
	for _, r := range results {
		if r.err != nil {
			t.Errorf("seed %d is bad", r.seed)
		}
	}
}

// missing fails a test where everything has to be there.
func missing(t *testing.T) func(string) {
	return func(lacks string) {
		if required() {
			t.Error(lacks)
		} else {
			t.Log("NOT TRIED HERE:", lacks)
		}
	}
}

func required() bool { return os.Getenv("OUTBOX_REQUIRE_SERVERS") == "1" }

func TestConsecutiveSeedsHaveEveryKindOfFaultOnBothBrokers(t *testing.T) {
	t.Parallel()
	all := func(fault) bool { return true }
	met := map[string][]string{}
	for seed := range 12 * deckSeeds() {
		for _, f := range faultsOf(seed, all) {
			if broker := brokerOf(seed); !slices.Contains(met[f.kind], broker) {
				met[f.kind] = append(met[f.kind], broker)
			}
		}
	}
	first := map[string]bool{}
	for seed := range deckSeeds() {
		for _, f := range faultsOf(seed, all) {
			first[f.kind] = true
		}
	}
	for _, f := range faults() {
		if !first[f.kind] {
			t.Errorf("%s is not among the first %d seeds", f.kind, deckSeeds())
		}
		if len(met[f.kind]) != 2 {
			t.Errorf("%s met %v alone", f.kind, met[f.kind])
		}
	}
}

func TestAnInterruptedRunLeavesNothingBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real servers: run make test")
	}
	// Not t.TempDir: root's PostgreSQL runs as another user, who has to enter it.
	tmp, err := os.MkdirTemp("", "outbox-nemesis-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", tmp)
	ctx, stop := context.WithTimeout(t.Context(), 8*time.Second)
	defer stop()
	_, err = runAll(ctx, options{seed: 1, runs: 100, sites: 1, keep: tmp}, missing(t), func(result) {})
	if errors.Is(err, servers.ErrNotFound) && !required() && os.Getenv("CI") == "" {
		t.Skipf("%v: run make servers", err)
	}
	if err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(tmp)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left {
		t.Errorf("%s is left", entry.Name())
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err == nil && strings.Contains(string(mounts), tmp) {
		t.Errorf("a file system is still mounted below %s", tmp)
	}
}
