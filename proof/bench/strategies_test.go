package main

import (
	"bytes"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

func TestEveryStrategyAndEveryArticleDelivers(t *testing.T) {
	t.Parallel()
	cfg := config(t, "strategies", "kafka")
	cfg.Messages, cfg.Keys, cfg.Workers, cfg.For = 1000, 40, []int{2}, -1
	cfg.Contenders = slices.DeleteFunc(StrategyNames(), func(name string) bool {
		return name == "seed3" || name == "seed4" // ten messages a second
	})
	results, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != len(cfg.Contenders)-2 { // the floor and replication work alone
		t.Fatalf("%d results of %d contenders", len(results), len(cfg.Contenders))
	}
	for _, r := range results {
		if broken := r.Broken(); broken != "" {
			t.Errorf("%s: %s", r.Contender, broken)
		}
		if r.Phantom+r.Corrupted > 0 || r.Lost > 0 && r.Contender != "seed1-v3" {
			t.Errorf("%s: %d lost, %d phantom, %d corrupted", r.Contender, r.Lost, r.Phantom, r.Corrupted)
		}
		if r.Rate <= 0 || r.Messages != 1000 {
			t.Errorf("the figures are odd: %+v", r)
		}
	}
}

func TestWhatAnArticlesPartitionsLoseIsSeen(t *testing.T) {
	t.Parallel()
	cfg := config(t, "strategies", "kafka")
	cfg.Messages, cfg.Keys, cfg.Workers, cfg.For = 2000, 40, []int{1}, -1
	cfg.Contenders = []string{"seed1-v3", "seed1-v3-repaired", "xmin"}
	results, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if loses := r.Contender == "seed1-v3"; loses != (r.Lost > 0) {
			t.Errorf("%s: %d lost", r.Contender, r.Lost)
		}
	}
}

func TestOtherLibrariesTakePart(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "peers")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./peers").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cfg := config(t, "strategies", "kafka")
	cfg.Messages, cfg.Keys, cfg.Workers, cfg.For, cfg.Peers = 300, 40, []int{1}, -1, program
	cfg.Contenders = []string{"watermill-offsets", "watermill-queue", "oagudo"}
	results, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Lost+r.Phantom+r.Corrupted+r.Duplicated > 0 || r.Rate <= 0 || r.StartMS <= 0 {
			t.Errorf("%s: %+v", r.Contender, r)
		}
		if deletes := r.Contender != "watermill-offsets"; deletes != (r.DeadRows > 0) {
			t.Errorf("%s left %d dead rows", r.Contender, r.DeadRows)
		}
	}
}

func TestOurWorkloadHasOneTopicOfTwoPartitions(t *testing.T) {
	t.Parallel()
	cfg := config(t, "strategies", "kafka")
	cfg.Messages, cfg.Keys, cfg.Workers, cfg.For, cfg.Workload = 1000, 40, []int{2}, -1, Ours
	cfg.Contenders = []string{"snapshot", "xmin", "serial", "seed1-v3", "seed1-v4", "skiplocked"}
	results, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Broken() != "" || r.Lost+r.Duplicated > 0 || r.Settings["partitions"] != "2" || r.Settings["originals_batch"] != "1000" {
			t.Errorf("%s: %s, %d lost, %d duplicated, %v", r.Contender, r.Broken(), r.Lost, r.Duplicated, r.Settings)
		}
	}
}

func TestRatiosAreOfTheSameRoundAndMeasuredAgainstTheirGoal(t *testing.T) {
	t.Parallel()
	run := func(contender string, workers, round int, rate float64) Result {
		return Result{Bench: "strategies", Workload: Seed, Contender: contender, Relays: workers, Round: round, Rate: rate}
	}
	ratios := Ratios([]Result{
		run("snapshot", 1, 1, 1300), run("seed1-v1", 1, 1, 100),
		run("seed1-v1", 1, 2, 10), run("snapshot", 1, 2, 110), // another hour
		run("snapshot", 2, 1, 300), run("seed1-v1", 2, 1, 100),
		run("seed1-v2", 1, 1, 100), run("lease", 2, 1, 100),
	})
	var out bytes.Buffer
	if err := RatioTable(&out, ratios); err != nil {
		t.Fatal(err)
	}
	if len(ratios) != 3 || ratios[0].Times != 12 || ratios[0].Low != 11 || ratios[0].High != 13 || ratios[0].Goal != 12 {
		t.Errorf("%+v", ratios)
	}
	if ratios[1].Original != "seed1-v2" || ratios[1].Times != 13 || !strings.Contains(out.String(), "25, missed") {
		t.Errorf("%+v\n%s", ratios[1], &out)
	}
	if ratios[2].Workers != 2 || ratios[2].Goal != 0 {
		t.Errorf("with two workers there is no goal: %+v", ratios[2])
	}
}

// It is alone: a transaction that another test holds open on the same server would stop xmin's drain, too.
func TestLatencyAndStallAreMeasuredUnderLoad(t *testing.T) {
	cfg := config(t, "strategies", "kafka")
	cfg.Messages, cfg.Keys, cfg.Workers, cfg.For, cfg.HeldFor = 100, 40, []int{1}, time.Second, 2*time.Second
	cfg.Rates = []int{20} // one that drains less than twice that is not measured, and the machine may be busy
	cfg.Contenders = []string{"skiplocked", "xmin"}
	results, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Broken() != "" || r.P50 <= 0 || r.P50 > r.P99 {
			t.Errorf("%s: %s, p50 %v, p99 %v", r.Contender, r.Broken(), r.P50, r.P99)
		}
		// A transaction elsewhere holds up who reads by transaction id for as long as it is open.
		if r.Contender == "xmin" && r.StallMS < float64(cfg.HeldFor.Milliseconds()/2) { // a busy machine sees less of it
			t.Errorf("xmin stalled for %v ms behind a transaction of 2 s", r.StallMS)
		}
		if r.Contender == "skiplocked" && r.DeadRows == 0 {
			t.Errorf("skiplocked left no dead rows")
		}
	}
}

func TestAComparisonIsRefusedWithAllReasons(t *testing.T) {
	t.Parallel()
	err := Config{Bench: "strategies", Broker: "nats", Contenders: []string{"nobody", "oagudo", Debezium},
		Bytes: 3, Workers: []int{0}, Keys: 2,
		Workload: "theirs"}.Validate()
	if err == nil {
		t.Fatal("it was accepted")
	}
	for _, want := range []string{"nats", "nobody", "bytes 3", "workers 0", "keys 2", "binary", "--peers", "--debezium", "theirs"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("nothing about %q in %v", want, err)
		}
	}
}

func TestOnlyOursAreHeldToAPromise(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		contender         string
		workers           int
		lost, twice, back uint64
		broken            bool
	}{
		{"seed1-v3", 1, 9, 9, 9, false},
		{"skiplocked", 2, 0, 0, 5, false},
		{"skiplocked", 1, 0, 0, 5, true},
		{"advisory", 2, 0, 0, 5, true},
		{"xmin", 1, 0, 0, 5, false},
		{"xmin", 1, 1, 0, 0, true},
		{"snapshot", 1, 0, 1, 0, true},
		{Floor, 1, 0, 1, 1, false},
	} {
		r := Result{Bench: "strategies", Contender: c.contender, Relays: c.workers, Lost: c.lost, Duplicated: c.twice, Inverted: c.back}
		if got := r.Broken() != ""; got != c.broken {
			t.Errorf("%+v: broken is %v", c, got)
		}
	}
}

func TestAPayloadOfJSONCarriesItsIdentity(t *testing.T) {
	t.Parallel()
	for _, size := range []int{minJSON, 256, 1000} {
		text := encodeJSON(7, 42, size)
		if len(text) > size || len(text) < size-3 {
			t.Errorf("%d bytes, asked for %d", len(text), size)
		}
		id, err := check.Decode(decodeJSON(text))
		if want := (check.ID{Key: 7, Seq: 42}); err != nil || id != want {
			t.Errorf("%v, %v", id, err)
		}
	}
	if _, err := check.Decode(decodeJSON([]byte(`{"data": "?"}`))); err == nil {
		t.Error("nonsense was accepted")
	}
}

func TestAComparisonHasATableAndAPlot(t *testing.T) {
	t.Parallel()
	runs := []Result{
		{Bench: "strategies", Contender: "snapshot", Relays: 1, Round: 1, Messages: 10, Rate: 200},
		{Bench: "strategies", Contender: "seed0", Relays: 1, Round: 1, Messages: 10, Rate: 50, Duplicated: 3},
	}
	compare(runs)
	if math.Abs(runs[1].RatioToSnapshot-0.25) > 1e-9 {
		t.Errorf("the ratio is %v", runs[1].RatioToSnapshot)
	}
	var table, plot bytes.Buffer
	if err := Table(&table, Summaries(runs)); err != nil {
		t.Fatal(err)
	}
	if err := Plot(&plot, Summaries(runs)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), "0.250") || !strings.Contains(plot.String(), "seed0 ×1") {
		t.Errorf("%s\n%s", &table, &plot)
	}
}
