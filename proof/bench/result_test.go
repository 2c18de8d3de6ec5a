package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSummariesAreMediansWithTheirSpread(t *testing.T) {
	t.Parallel()
	var runs []Result
	for round, rates := range [][2]float64{{100, 90}, {300, 150}, {200, 190}} {
		floor := Result{Bench: "drain", Contender: Floor, Round: round + 1, Rate: rates[0], Messages: 10, RSSMB: float64(round)}
		relay := Result{Bench: "drain", Contender: Relay, Round: round + 1,
			Rate: rates[1], Messages: 10, Lost: uint64(round), P50: rates[1] / 10}
		pair := []Result{floor, relay}
		if round == 1 {
			slices.Reverse(pair)
		}
		compare(pair)
		runs = append(runs, pair...)
	}
	got := Summaries(append(runs, Result{Contender: "an old summary"}))
	if len(got) != 2 || got[0].Contender != Floor || got[1].Contender != Relay {
		t.Fatalf("%+v", got)
	}
	floor, relay := got[0], got[1]
	if floor.Rate != 200 || floor.Spread.Rate != [2]float64{100, 300} || floor.RatioToFloor != 1 || floor.RSSMB != 2 {
		t.Errorf("floor: %+v %+v", floor, floor.Spread)
	}
	if relay.Rate != 150 || relay.RatioToFloor != 0.9 || relay.Spread.RatioToFloor != [2]float64{0.5, 0.95} ||
		relay.Lost != 3 || relay.P50 != 15 {
		t.Errorf("relay: %+v %+v", relay, relay.Spread)
	}
	if relay.Round != 0 || relay.Messages != 10 {
		t.Errorf("a summary is round %d of %d messages", relay.Round, relay.Messages)
	}
	if relay.Broken() == "" || floor.Broken() != "" {
		t.Error("a loss in one round must show in the summary")
	}
}

func TestTheMedianOfAnEvenNumberIsBetween(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		of   []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{1, 2}, 1.5}, {[]float64{1, 2, 9}, 2}, {[]float64{1, 2, 4, 9}, 3}} {
		if got := median(test.of); got != test.want {
			t.Errorf("median of %v is %v, want %v", test.of, got, test.want)
		}
	}
}

func TestALatencyIsComparedByItsQuantiles(t *testing.T) {
	t.Parallel()
	round := []Result{{Bench: "latency", Contender: Relay, P50: 3, P99: 8}, {Bench: "latency", Contender: Floor, P50: 2, P99: 4}}
	compare(round)
	if round[0].RatioToFloor != 1.5 || round[0].P99Ratio != 2 {
		t.Errorf("%+v", round[0])
	}
	alone := []Result{{Bench: "drain", Contender: Relay, Rate: 3}}
	compare(alone)
	if alone[0].RatioToFloor != 0 {
		t.Error("there is a ratio without a floor")
	}
}

func TestTheCourseOfADrainGivesTheAgesOfItsMessages(t *testing.T) {
	t.Parallel()
	a := &arrivals{total: 1000, end: 3 * time.Second,
		course: []progress{{time.Second, 500}, {2 * time.Second, 900}, {3 * time.Second, 1000}}}
	for share, want := range map[float64]float64{0.25: 500, 0.5: 1000, 0.7: 1500, 0.95: 2500, 1: 3000} {
		if got := a.reached(share); got != want {
			t.Errorf("%v of the messages after %v ms, want %v", share, got, want)
		}
	}
}

func TestTheTimesOfALoadAreRandomAndTheSameEachTime(t *testing.T) {
	t.Parallel()
	l := paced{Rate: 1000, For: 20 * time.Second, Seed: 1}
	times := l.times()
	if n := len(times); n < 19_000 || n > 21_000 {
		t.Errorf("%d messages in 20 s at 1,000/s", n)
	}
	if !slices.IsSorted(times) || times[len(times)-1] >= l.For {
		t.Error("the times are in disorder, or go on too long")
	}
	if !slices.Equal(times, l.times()) {
		t.Error("contenders would get different loads")
	}
	short := 0
	for i := 1; i < len(times); i++ {
		if times[i]-times[i-1] < 500*time.Microsecond {
			short++
		}
	}
	// 1 - e^-0.5 of independent arrivals follow within half the mean.
	if share := float64(short) / float64(len(times)); share < 0.37 || share > 0.42 {
		t.Errorf("%.3f of the messages follow soon after another, want 0.393", share)
	}
}

func examples() map[string][]Result {
	drain := func(sweep, value string) []Result {
		var all []Result
		for round := 1; round <= 2; round++ {
			pair := []Result{
				{Bench: "drain", Contender: Floor, Broker: "kafka",
					Messages: 1_000_000, Bytes: 256, Rate: 500_000 + float64(round), Seconds: 2},
				{Bench: "drain", Contender: Relay, Broker: "kafka", Messages: 1_000_000, Bytes: 256, Rate: 460_000, Seconds: 2.1},
			}
			for i := range pair {
				pair[i].Round, pair[i].Sweep, pair[i].Value = round, sweep, value
				pair[i].Versions = map[string]string{"kafka": "4.3.1", "outbox": "<dev> & co"}
				pair[i].Settings, pair[i].Date = map[string]string{"partitions": "2"}, "2026-11-21"
			}
			compare(pair)
			all = append(all, pair...)
		}
		return all
	}
	return map[string][]Result{
		"drain": drain("", ""),
		"sweep": slices.Concat(drain("batch", "100"), drain("batch", "1000")),
		"latency": {{Bench: "latency", Contender: Relay, Broker: "nats",
			Round: 1, TargetRate: 200, P50: 1.25, P99: 4.5, Seconds: 10, Messages: 2000}},
		"write": {{Bench: "write", Contender: Writer, Round: 1,
			Rate: 1234, Seconds: 5, Messages: 6000, Settings: map[string]string{"writers": "4"}}},
	}
}

func TestPlotsAreWellFormedAndNameEveryContender(t *testing.T) {
	t.Parallel()
	for name, runs := range examples() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := Plot(&out, Summaries(runs)); err != nil {
				t.Fatal(err)
			}
			picture := out.String()
			for dec := xml.NewDecoder(&out); ; {
				_, err := dec.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("%v in\n%s", err, picture)
				}
			}
			for _, r := range runs {
				if !strings.Contains(picture, ">"+r.Contender) {
					t.Errorf("%s is not in the picture", r.Contender)
				}
			}
			for _, bad := range []string{"NaN", "Inf", "%!"} {
				if strings.Contains(picture, bad) {
					t.Errorf("the picture has a %s:\n%s", bad, picture)
				}
			}
			if !strings.Contains(picture, "prefers-color-scheme:dark") {
				t.Error("the picture has no colours for the dark")
			}
		})
	}
	if err := Plot(io.Discard, nil); err == nil {
		t.Error("nothing was plotted without an error")
	}
}

func TestAxesEndAtRoundNumbersAboveTheHighest(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ highest, end float64 }{{0, 1}, {1, 1}, {7, 8}, {550_000, 600_000}, {118_000, 120_000}, {0.33, 0.4}} {
		ticks, end := scale(test.highest)
		if end < test.highest || end-test.end > 1e-9 || test.end-end > 1e-9 || len(ticks) > 7 || ticks[0] != 0 {
			t.Errorf("up to %v: %v", test.highest, ticks)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1234: "-1,234", -123: "-123"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) is %s", n, got)
		}
	}
}

func TestAReportReplacesTheResultsOfAPage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	page, plots := filepath.Join(dir, "benchmarks.md"), filepath.Join(dir, "plots")
	if err := os.Mkdir(plots, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var files []string
	for _, name := range []string{"drain", "sweep", "latency", "write"} {
		var lines bytes.Buffer
		enc := json.NewEncoder(&lines)
		for _, r := range slices.Concat(examples()[name], Summaries(examples()[name])) {
			if err := enc.Encode(r); err != nil {
				t.Fatal(err)
			}
		}
		files = append(files, filepath.Join(dir, name+".jsonl"))
		write(files[len(files)-1], lines.String())
	}
	write(page, "before\n"+resultsBegin+"\nold\n"+resultsEnd+"\nafter\n")
	for range 2 { // a second time changes nothing
		if err := Report(io.Discard, files, plots, page); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"before\n" + resultsBegin, resultsEnd + "\nafter\n", "![Drain of 1,000,000 × 256 B into Kafka](plots/drain.svg)",
		"| relay |", "| batch |", "kafka 4.3.1", "`partitions=2`", "2 rounds", "1 round", "0.92",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "old") || strings.Count(string(text), resultsBegin) != 1 {
		t.Errorf("the old results are there still:\n%s", text)
	}
	if _, err := os.Stat(filepath.Join(plots, "sweep.svg")); err != nil {
		t.Error(err)
	}

	write(page, "no markers")
	if err := Report(io.Discard, files, plots, page); err == nil || !strings.Contains(err.Error(), resultsBegin) {
		t.Errorf("without markers: %v", err)
	}
	write(files[0], `{"bench":"marathon"}`)
	if err := Report(io.Discard, files[:1], plots, ""); err == nil || !strings.Contains(err.Error(), "marathon") {
		t.Errorf("with results of something else: %v", err)
	}
	write(files[0], "")
	if err := Report(io.Discard, files[:1], plots, ""); err == nil {
		t.Error("an empty file was reported")
	}
}

func TestATableShowsSpreadsWhereThereAreAny(t *testing.T) {
	t.Parallel()
	runs := examples()["drain"]
	var single, both bytes.Buffer
	if err := errors.Join(Table(&single, runs[:1]), Table(&both, slices.Concat(runs, Summaries(runs)))); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(single.String(), "from–to") || !strings.Contains(both.String(), "500001–500002") {
		t.Errorf("%s\n%s", &single, &both)
	}
	if lines := strings.Count(both.String(), "\n"); lines != 1+4+2 {
		t.Errorf("%d lines:\n%s", lines, &both)
	}
}
