package main

import (
	"fmt"
	"io"
	"slices"
)

// Ratio compares the rates of one of ours with what stands for the same: the median of the rounds.
type Ratio struct {
	Workload       string
	Workers        int
	Ours, Original string
	Times          float64
	Low, High      float64
	Goal           float64 // it should be at least that; 0 is none
}

// rivals are what ours are compared with, and how many times their rate is the goal where an article's own
// workload has one.
func rivals() []Ratio {
	return []Ratio{
		{Ours: "snapshot", Original: "seed1-v1", Goal: 12},
		{Ours: "snapshot", Original: "seed1-v2", Goal: 25},
		{Ours: "snapshot", Original: "seed1-v3", Goal: 6},
		{Ours: "snapshot", Original: "seed1-v3-repaired", Goal: 6},
		{Ours: "snapshot", Original: "seed1-v4", Goal: 5},
		{Ours: "skiplocked", Original: "seed1-v1", Goal: 2},
		{Ours: "advisory", Original: "seed1-v1.1"},
		{Ours: "lease", Original: "seed1-v2", Goal: 2},
		{Ours: "xmin", Original: "seed1-v3", Goal: 2},
		{Ours: "xmin", Original: "seed1-v3-repaired", Goal: 2},
		{Ours: "serial", Original: "seed1-v4"},
		{Ours: "snapshot", Original: "watermill-offsets"},
		{Ours: "snapshot", Original: "watermill-queue"},
		{Ours: "snapshot", Original: "oagudo"},
		{Ours: "replication", Original: Debezium},
	}
}

// Ratios returns how many times as fast ours are as the originals, each pair of the same round. It returns
// nothing for other benchmarks.
func Ratios(runs []Result) []Ratio {
	type group struct {
		workload string
		workers  int
	}
	var groups []group
	rates := make(map[group]map[string]map[int]float64) // of contenders, by round
	for _, r := range runs {
		if r.Bench != "strategies" || r.Round == 0 {
			continue
		}
		g := group{r.Workload, r.Relays}
		if rates[g] == nil {
			groups, rates[g] = append(groups, g), make(map[string]map[int]float64)
		}
		if rates[g][r.Contender] == nil {
			rates[g][r.Contender] = make(map[int]float64)
		}
		rates[g][r.Contender][r.Round] = r.Rate
	}
	var out []Ratio
	for _, g := range groups {
		for _, pair := range rivals() {
			var times []float64
			for round, ours := range rates[g][pair.Ours] {
				if theirs := rates[g][pair.Original][round]; theirs > 0 {
					times = append(times, ours/theirs)
				}
			}
			if len(times) == 0 {
				continue
			}
			slices.Sort(times)
			pair.Workload, pair.Workers = g.workload, g.workers
			pair.Times, pair.Low, pair.High = median(times), times[0], times[len(times)-1]
			if g.workload != Seed || g.workers > 1 {
				pair.Goal = 0
			}
			out = append(out, pair)
		}
	}
	return out
}

// ratioTable shows ratios.
func ratioTable(ratios []Ratio) table {
	t := table{texts: []bool{false, true, true, false, false, false}}
	if len(ratios) > 0 {
		t.rows = [][]string{{"workers", "strategy", "original", "times as fast", "from–to", "goal"}}
	}
	for _, r := range ratios {
		spread, goal := "", ""
		if r.Low < r.High {
			spread = fmt.Sprintf("%.1f–%.1f", r.Low, r.High)
		}
		if r.Goal > 0 {
			goal = fmt.Sprintf("%.0f, missed", r.Goal)
			if r.Times >= r.Goal {
				goal = fmt.Sprintf("%.0f", r.Goal)
			}
		}
		t.rows = append(t.rows, []string{fmt.Sprint(r.Workers), r.Ours, r.Original, fmt.Sprintf("%.1f", r.Times), spread, goal})
	}
	return t
}

// RatioTable writes ratios for people.
func RatioTable(w io.Writer, ratios []Ratio) error { return ratioTable(ratios).write(w) }
