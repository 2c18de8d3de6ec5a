package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

const output = `goos: linux
pkg: github.com/pgoutbox/outbox/broker/redis
BenchmarkAgainstLoop/redis-2         	       5	    100000 adapter-msg/s	         0.9500 far-ratio	         1.100 far-ratio-high	         0.8000 far-ratio-low	         0.9700 kept	         1.000 kept-high	         0.9000 kept-low	         0.7500 cpu-ratio	         0.7800 cpu-ratio-high	         0.7200 cpu-ratio-low	         0.9900 loop-kept	         1.010 loop-kept-high	         0.9800 loop-kept-low	    120000 loop-msg/s	         0.8333 ratio	         0.9000 ratio-high	         0.7000 ratio-low
BenchmarkAgainstLoop/redis_without_DedupWindow-2 	5	1 adapter-msg/s
--- BENCH: BenchmarkAgainstLoop/other
PASS
`

func TestTheTableHasWhatTheBenchmarksReport(t *testing.T) {
	t.Parallel()
	var table bytes.Buffer
	if err := write(&table, parse(output)); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(table.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("the table is\n%s", table.String())
	}
	want := "| redis | 100000 | 120000 | 0.83 (0.70–0.90) | 0.75 (0.72–0.78) | 0.95 (0.80–1.10) | 0.97 (0.90–1.00) | 0.99 (0.98–1.01) |"
	if lines[2] != want {
		t.Errorf("the line is\n%s, want\n%s", lines[2], want)
	}
	if !strings.HasPrefix(lines[3], "| redis without DedupWindow | 1 |") {
		t.Errorf("the line is\n%s", lines[3])
	}
}

func TestAnUnknownBrokerIsNamedBeforeAnythingIsMeasured(t *testing.T) {
	t.Parallel()
	err := run(t.Context(), 1, []string{"redis", "reddis"}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), `"reddis"`) {
		t.Errorf("error %v", err)
	}
}
