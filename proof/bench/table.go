package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// column is how a figure is shown to people.
type column struct {
	name string
	cell func(*Result) string
}

// columns of a table of one kind of benchmark.
func columns(bench string) []column {
	number := func(name, format string, of func(*Result) float64) column {
		return column{name, func(r *Result) string { return fmt.Sprintf(format, of(r)) }}
	}
	count := func(name string, of func(*Result) uint64) column {
		return column{name, func(r *Result) string { return fmt.Sprint(of(r)) }}
	}
	all := []column{
		{"contender", func(r *Result) string { return r.Contender }},
		{"round", func(r *Result) string {
			if r.Round == 0 {
				return "median"
			}
			return fmt.Sprint(r.Round)
		}},
	}
	ratio := func(name string, of func(*Result) float64) column {
		return column{name, func(r *Result) string {
			if of(r) == 0 {
				return "–"
			}
			return fmt.Sprintf("%.2f", of(r))
		}}
	}
	spread := func(name, format string, of func(*Spread) [2]float64) column {
		return column{name, func(r *Result) string {
			if r.Spread == nil {
				return ""
			}
			s := of(r.Spread)
			return fmt.Sprintf(format+"–"+format, s[0], s[1])
		}}
	}
	verdict := []column{
		count("lost", func(r *Result) uint64 { return r.Lost }),
		count("phantom", func(r *Result) uint64 { return r.Phantom + r.Corrupted }),
		count("duplicated", func(r *Result) uint64 { return r.Duplicated }),
		count("inverted", func(r *Result) uint64 { return r.Inverted }),
	}
	switch bench {
	case "latency":
		all = append(all,
			column{"messages/s", func(r *Result) string { return fmt.Sprint(r.TargetRate) }},
			number("p50 ms", "%.2f", func(r *Result) float64 { return r.P50 }),
			number("p95 ms", "%.2f", func(r *Result) float64 { return r.P95 }),
			number("p99 ms", "%.2f", func(r *Result) float64 { return r.P99 }),
			number("max ms", "%.1f", func(r *Result) float64 { return r.Max }),
			spread("p50 from–to", "%.2f", func(s *Spread) [2]float64 { return s.P50 }),
			spread("p99 from–to", "%.2f", func(s *Spread) [2]float64 { return s.P99 }),
			ratio("p50 ÷ floor", func(r *Result) float64 { return r.RatioToFloor }),
			ratio("p99 ÷ floor", func(r *Result) float64 { return r.P99Ratio }),
			number("cores", "%.3f", func(r *Result) float64 { return r.RelayCPU / r.Seconds }),
			number("database cores", "%.3f", func(r *Result) float64 { return r.DatabaseCPU / r.Seconds }),
			number("idle cores", "%.4f", func(r *Result) float64 { return r.IdleCPU }),
			number("idle database cores", "%.4f", func(r *Result) float64 { return r.IdleDatabaseCPU }),
			number("RSS MiB", "%.0f", func(r *Result) float64 { return r.RSSMB }),
			number("commit p99 ms", "%.1f", func(r *Result) float64 { return r.WriteP99 }),
		)
	case "write":
		all = append(all,
			number("transactions/s", "%.0f", func(r *Result) float64 { return r.Rate }),
			spread("from–to", "%.0f", func(s *Spread) [2]float64 { return s.Rate }),
			ratio("÷ insert", func(r *Result) float64 { return r.RatioToFloor }),
			number("p50 ms", "%.2f", func(r *Result) float64 { return r.P50 }),
			number("p99 ms", "%.2f", func(r *Result) float64 { return r.P99 }),
			number("database CPU µs each", "%.0f", func(r *Result) float64 { return r.DatabaseCPU / (r.Rate * r.Seconds) * 1e6 }),
		)
		verdict = verdict[:2]
	case "strategies":
		all = append(all, strategyColumns()...)
	default:
		perMessage := func(of func(*Result) float64) func(*Result) float64 {
			return func(r *Result) float64 { return of(r) / float64(r.Messages) * 1e6 }
		}
		all = append(all,
			number("seconds", "%.2f", func(r *Result) float64 { return r.Seconds }),
			number("messages/s", "%.0f", func(r *Result) float64 { return r.Rate }),
			spread("from–to", "%.0f", func(s *Spread) [2]float64 { return s.Rate }),
			ratio("÷ floor", func(r *Result) float64 { return r.RatioToFloor }),
			spread("from–to", "%.2f", func(s *Spread) [2]float64 { return s.RatioToFloor }),
			number("half after ms", "%.0f", func(r *Result) float64 { return r.P50 }),
			number("CPU µs each", "%.2f", perMessage(func(r *Result) float64 { return r.RelayCPU })),
			number("database CPU µs each", "%.2f", perMessage(func(r *Result) float64 { return r.DatabaseCPU })),
			number("RSS MiB", "%.0f", func(r *Result) float64 { return r.RSSMB }),
		)
	}
	return append(all, verdict...)
}

// tableOf returns the columns that results, all of one kind, need: that of a sweep, and spreads, only
// where there are any.
func tableOf(results []Result) []column {
	all := columns(results[0].Bench)
	if sweep := results[0].Sweep; sweep != "" {
		all = append([]column{{sweep, func(r *Result) string { return r.Value }}}, all...)
	}
	var used []column
	for _, c := range all {
		for i := range results {
			if c.cell(&results[i]) != "" {
				used = append(used, c)
				break
			}
		}
	}
	return used
}

// Table writes results of one kind for people.
func Table(w io.Writer, results []Result) error {
	if len(results) == 0 {
		return nil
	}
	cols := tableOf(results)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(cell func(column) string) {
		for _, c := range cols {
			fmt.Fprint(tw, cell(c), "\t")
		}
		fmt.Fprintln(tw)
	}
	line(func(c column) string { return c.name })
	for i := range results {
		line(func(c column) string { return c.cell(&results[i]) })
	}
	return tw.Flush()
}

// markdown writes results of one kind as a table for a page.
func markdown(b *strings.Builder, results []Result) {
	var cols []column
	for _, c := range tableOf(results) {
		if c.name != "round" { // it says "median" everywhere
			cols = append(cols, c)
		}
	}
	for _, c := range cols {
		fmt.Fprintf(b, "| %s ", c.name)
	}
	b.WriteString("|\n|---")
	b.WriteString(strings.Repeat("|--:", len(cols)-1))
	b.WriteString("|\n")
	for i := range results {
		for _, c := range cols {
			fmt.Fprintf(b, "| %s ", c.cell(&results[i]))
		}
		b.WriteString("|\n")
	}
}
