package main

import (
	"fmt"
	"slices"
)

// strategyBroken holds a contender to what it promises: an original, or another's, to nothing.
func (r *Result) strategyBroken() string {
	i := slices.IndexFunc(strategies(), func(s strategy) bool { return s.name == r.Contender })
	if i < 0 {
		return ""
	}
	s := strategies()[i]
	if s.order == nil {
		return ""
	}
	floor := s.name == Floor
	if r.Corrupted+r.Phantom+r.Lost > 0 || r.Duplicated > 0 && !floor || r.Inverted > 0 && s.order(r.Relays) {
		return fmt.Sprintf("%d lost, %d phantom, %d corrupted, %d duplicated, %d inverted", r.Lost, r.Phantom, r.Corrupted, r.Duplicated, r.Inverted)
	}
	return ""
}

// strategyColumns are the figures of a comparison.
func strategyColumns() []column {
	number := func(name, format string, of func(*Result) float64) column {
		return column{name, func(r *Result) string {
			if of(r) == 0 {
				return "–"
			}
			return fmt.Sprintf(format, of(r))
		}}
	}
	each := func(of func(*Result) float64) func(*Result) float64 {
		return func(r *Result) float64 { return of(r) / float64(r.Messages) * 1e6 }
	}
	return []column{
		{"workers", func(r *Result) string { return fmt.Sprint(r.Relays) }},
		{"messages", func(r *Result) string { return thousands(r.Messages) }},
		number("seconds", "%.2f", func(r *Result) float64 { return r.Seconds }),
		number("messages/s", "%.0f", func(r *Result) float64 { return r.Rate }),
		number("÷ snapshot", "%.3f", func(r *Result) float64 { return r.RatioToSnapshot }),
		number("÷ floor", "%.3f", func(r *Result) float64 { return r.RatioToFloor }),
		number("CPU µs each", "%.1f", each(func(r *Result) float64 { return r.RelayCPU })),
		number("database CPU µs each", "%.1f", each(func(r *Result) float64 { return r.DatabaseCPU })),
		number("WAL bytes each", "%.0f", func(r *Result) float64 { return r.WALMB * (1 << 20) / float64(r.Messages) }),
		number("dead rows each", "%.2f", func(r *Result) float64 { return float64(r.DeadRows) / float64(r.Messages) }),
		number("VACUUM µs each", "%.2f", func(r *Result) float64 { return r.VacuumMS * 1000 / float64(r.Messages) }),
		number("start ms", "%.0f", func(r *Result) float64 { return r.StartMS }),
		number("RSS MiB", "%.0f", func(r *Result) float64 { return r.RSSMB }),
		number("latency p50 ms", "%.1f", func(r *Result) float64 { return r.P50 }),
		number("p99 ms", "%.1f", func(r *Result) float64 { return r.P99 }),
		number("longest gap ms", "%.0f", func(r *Result) float64 { return r.StallMS }),
	}
}

// strategiesChart has the rate of each contender, by workers.
func strategiesChart(results []Result) *chart {
	c := &chart{title: "Strategies and the articles' algorithms, into Kafka", unit: "messages/s",
		subtitle: fmt.Sprintf("%d B, workload %q; in brackets: the share of the floor", results[0].Bytes, results[0].Workload)}
	for _, r := range results {
		c.categories = append(c.categories, fmt.Sprintf("%s ×%d", r.Contender, r.Relays))
	}
	l := line{}
	for _, r := range results {
		l.points = append(l.points, ratePoint(r))
	}
	c.series = []line{l}
	return c
}
