package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
)

// One deck: every kind of fault once, on either broker. make nemesis runs as many as are wanted.
func TestEveryKindOfFaultKeepsThePromises(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real servers: run make test")
	}
	results, err := runAll(t.Context(), options{seed: 1, runs: int(deckSeeds()),
		sites: 2, keep: os.TempDir(), strategy: "snapshot", faults: faultsARun}, missing(t), func(r result) { t.Log(r) })
	if errors.Is(err, servers.ErrNotFound) && !servers.Required() {
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

// Every other strategy, on every table that has it, with a fault each.
func TestEveryStrategyKeepsThePromises(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real servers: run make test")
	}
	n := len(systems(""))
	results, err := runAll(t.Context(), options{seed: uint64(n), runs: n, sites: 2, keep: os.TempDir(), faults: 1},
		missing(t), func(r result) { t.Log(r) })
	if errors.Is(err, servers.ErrNotFound) && !servers.Required() {
		t.Skipf("%v: run make servers", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != n {
		t.Errorf("%d of %d runs were made", len(results), n)
	}
	for _, r := range results {
		if r.err != nil {
			t.Errorf("seed %d is bad", r.seed)
		}
	}
}

// What is left out is what the list says, and every fault is tried with some system.
func TestEveryFaultThatIsLeftOutHasItsReason(t *testing.T) {
	t.Parallel()
	for _, l := range leftOut() {
		if !slices.ContainsFunc(faults(), func(f fault) bool { return f.kind == l.kind }) ||
			l.why == "" || !slices.ContainsFunc(systems(""), l.of) {
			t.Errorf("%q leaves nothing out", l.kind)
		}
	}
	for _, f := range faults() {
		if !slices.ContainsFunc(systems(""), func(s system) bool { return s.fits(f, 2) }) {
			t.Errorf("%q fits no system", f.kind)
		}
	}
}

// missing fails a test where everything has to be there.
func missing(t *testing.T) func(string) {
	return func(lacks string) {
		if servers.Required() {
			t.Error(lacks)
		} else {
			t.Log("NOT TRIED HERE:", lacks)
		}
	}
}

func TestConsecutiveSeedsHaveEveryKindOfFaultOnBothBrokers(t *testing.T) {
	t.Parallel()
	all := func(fault) bool { return true }
	met := map[string][]string{}
	for seed := range 12 * deckSeeds() {
		for _, f := range faultsOf(seed, faultsARun, all) {
			if broker := brokerOf(seed); !slices.Contains(met[f.kind], broker) {
				met[f.kind] = append(met[f.kind], broker)
			}
		}
	}
	first := map[string]bool{}
	for seed := range deckSeeds() {
		for _, f := range faultsOf(seed, faultsARun, all) {
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
	ctx, stop := context.WithTimeout(t.Context(), await.Expiry(8*time.Second))
	defer stop()
	_, err = runAll(ctx, options{seed: 1, runs: 100, sites: 1, keep: tmp, faults: faultsARun}, missing(t), func(result) {})
	if errors.Is(err, servers.ErrNotFound) && !servers.Required() {
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
