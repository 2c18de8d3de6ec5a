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

func number(name, format string, of func(*Result) float64) column {
	return column{name, func(r *Result) string { return fmt.Sprintf(format, of(r)) }}
}

// measured is a number that is a dash where it was not measured.
func measured(name, format string, of func(*Result) float64) column {
	return column{name, func(r *Result) string {
		if of(r) == 0 {
			return "–"
		}
		return fmt.Sprintf(format, of(r))
	}}
}

func spread(name, format string, of func(*Spread) [2]float64) column {
	return column{name, func(r *Result) string {
		if r.Spread == nil {
			return ""
		}
		s := of(r.Spread)
		if s == [2]float64{} {
			return ""
		}
		return fmt.Sprintf(format+"–"+format, s[0], s[1])
	}}
}

// each is a figure for one message, in millionths.
func each(of func(*Result) float64) func(*Result) float64 {
	return func(r *Result) float64 { return of(r) / float64(r.Messages) * 1e6 }
}

// columns of a table of one kind of benchmark.
func columns(bench string) []column {
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
			measured("p50 ÷ floor", "%.2f", func(r *Result) float64 { return r.RatioToFloor }),
			measured("p99 ÷ floor", "%.2f", func(r *Result) float64 { return r.P99Ratio }),
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
			measured("÷ insert", "%.2f", func(r *Result) float64 { return r.RatioToFloor }),
			number("p50 ms", "%.2f", func(r *Result) float64 { return r.P50 }),
			number("p99 ms", "%.2f", func(r *Result) float64 { return r.P99 }),
			number("database CPU µs each", "%.0f", func(r *Result) float64 { return r.DatabaseCPU / (r.Rate * r.Seconds) * 1e6 }),
		)
		verdict = verdict[:2]
	case "strategies":
		all = append(all,
			column{"workers", func(r *Result) string { return fmt.Sprint(r.Relays) }},
			column{"messages", func(r *Result) string { return thousands(r.Messages) }},
			measured("seconds", "%.2f", func(r *Result) float64 { return r.Seconds }),
			measured("messages/s", "%.0f", func(r *Result) float64 { return r.Rate }),
			measured("÷ snapshot", "%.3f", func(r *Result) float64 { return r.RatioToSnapshot }),
			measured("÷ floor", "%.3f", func(r *Result) float64 { return r.RatioToFloor }),
			measured("CPU µs each", "%.1f", each(func(r *Result) float64 { return r.RelayCPU })),
			measured("database CPU µs each", "%.1f", each(func(r *Result) float64 { return r.DatabaseCPU })),
			measured("WAL bytes each", "%.0f", func(r *Result) float64 { return r.WALMB * (1 << 20) / float64(r.Messages) }),
			measured("dead rows each", "%.2f", func(r *Result) float64 { return float64(r.DeadRows) / float64(r.Messages) }),
			measured("VACUUM µs each", "%.2f", func(r *Result) float64 { return r.VacuumMS * 1000 / float64(r.Messages) }),
			measured("start ms", "%.0f", func(r *Result) float64 { return r.StartMS }),
			measured("RSS MiB", "%.0f", func(r *Result) float64 { return r.RSSMB }),
			measured("latency p50 ms", "%.1f", func(r *Result) float64 { return r.P50 }),
			measured("p99 ms", "%.1f", func(r *Result) float64 { return r.P99 }),
			measured("longest gap ms", "%.0f", func(r *Result) float64 { return r.StallMS }),
		)
	default:
		all = append(all,
			number("seconds", "%.2f", func(r *Result) float64 { return r.Seconds }),
			number("messages/s", "%.0f", func(r *Result) float64 { return r.Rate }),
			spread("from–to", "%.0f", func(s *Spread) [2]float64 { return s.Rate }),
			measured("÷ floor", "%.2f", func(r *Result) float64 { return r.RatioToFloor }),
			spread("from–to", "%.2f", func(s *Spread) [2]float64 { return s.RatioToFloor }),
			measured("÷ fair", "%.2f", func(r *Result) float64 { return r.RatioToFair }),
			spread("from–to", "%.2f", func(s *Spread) [2]float64 { return s.RatioToFair }),
			measured("messages/s from its start", "%.0f", func(r *Result) float64 { return r.WholeRate }),
			number("half after ms", "%.0f", func(r *Result) float64 { return r.P50 }),
			number("CPU µs each", "%.2f", each(func(r *Result) float64 { return r.RelayCPU })),
			number("database CPU µs each", "%.2f", each(func(r *Result) float64 { return r.DatabaseCPU })),
			number("RSS MiB", "%.0f", func(r *Result) float64 { return r.RSSMB }),
		)
	}
	return append(all, verdict...)
}

// table is rows of cells, the names of the columns first. texts says which columns stand to the left.
type table struct {
	rows  [][]string
	texts []bool
}

// tableOf shows results, all of one kind: the column of a sweep, and spreads, only where there are any.
func tableOf(results []Result, without string) (t table) {
	if len(results) == 0 {
		return t
	}
	all := columns(results[0].Bench)
	if sweep := results[0].Sweep; sweep != "" {
		all = append([]column{{sweep, func(r *Result) string { return r.Value }}}, all...)
	}
	t.rows = make([][]string, 1+len(results))
	for _, c := range all {
		cells := []string{c.name}
		for i := range results {
			cells = append(cells, c.cell(&results[i]))
		}
		if c.name == without || strings.Join(cells[1:], "") == "" {
			continue
		}
		for i, cell := range cells {
			t.rows[i] = append(t.rows[i], cell)
		}
		t.texts = append(t.texts, len(t.texts) == 0)
	}
	return t
}

// write writes a table for people.
func (t table) write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range t.rows {
		fmt.Fprintln(tw, strings.Join(row, "\t")+"\t")
	}
	return tw.Flush()
}

// markdown writes a table for a page.
func (t table) markdown(b *strings.Builder) {
	for i, row := range t.rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
		if i > 0 {
			continue
		}
		for _, text := range t.texts {
			b.WriteString(map[bool]string{true: "|---", false: "|--:"}[text])
		}
		b.WriteString("|\n")
	}
}

// Table writes results of one kind for people.
func Table(w io.Writer, results []Result) error { return tableOf(results, "").write(w) }
