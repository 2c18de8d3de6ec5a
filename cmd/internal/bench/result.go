package bench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Result is one contender's run, or the median of its runs.
type Result struct {
	Contender    string  `json:"contender"`
	Broker       string  `json:"broker"`
	Messages     int     `json:"messages"`
	Bytes        int     `json:"bytes"`
	Keys         int     `json:"keys"`
	Relays       int     `json:"relays"`
	Round        int     `json:"round"` // 0 for the median over rounds
	Seconds      float64 `json:"seconds"`
	Rate         float64 `json:"rate"`           // messages per second
	RatioToFloor float64 `json:"ratio_to_floor"` // of the rates, same round; 0 without a floor
	RSSMB        float64 `json:"rss_mb"`         // peak of the contender's process
	RelayCPU     float64 `json:"relay_cpu_s"`
	DatabaseCPU  float64 `json:"database_cpu_s"`
	Lost         uint64  `json:"lost"`
	Duplicated   uint64  `json:"duplicated"`
	Inverted     uint64  `json:"inverted"`
	Phantom      uint64  `json:"phantom"`
	Postgres     string  `json:"postgres"`
	Go           string  `json:"go"`
}

// OK reports whether the run kept the promises. The floor promises nothing but delivery.
func (r Result) OK() bool {
	return r.Lost == 0 && r.Phantom == 0 && (r.Contender == Floor || r.Inverted == 0 && r.Duplicated == 0)
}

// Medians returns the median run of each contender, by rate, with the median of its ratios.
func Medians(runs []Result) []Result {
	var out []Result
	for _, name := range order(runs) {
		var mine []Result
		for _, r := range runs {
			if r.Contender == name {
				mine = append(mine, r)
			}
		}
		slices.SortFunc(mine, func(a, b Result) int { return cmp.Compare(a.Rate, b.Rate) })
		median := mine[len(mine)/2]
		slices.SortFunc(mine, func(a, b Result) int { return cmp.Compare(a.RatioToFloor, b.RatioToFloor) })
		median.RatioToFloor = mine[len(mine)/2].RatioToFloor
		median.Round = 0
		for _, r := range mine {
			median.RSSMB = max(median.RSSMB, r.RSSMB)
			median.Lost += r.Lost
			median.Phantom += r.Phantom
			median.Duplicated += r.Duplicated
			median.Inverted += r.Inverted
		}
		// The median run's own counts were added twice.
		for _, r := range runs {
			if r.Contender == name && r.Rate == median.Rate {
				median.Lost -= r.Lost
				median.Phantom -= r.Phantom
				median.Duplicated -= r.Duplicated
				median.Inverted -= r.Inverted
				break
			}
		}
		out = append(out, median)
	}
	return out
}

func order(runs []Result) []string {
	var names []string
	for _, r := range runs {
		if !slices.Contains(names, r.Contender) {
			names = append(names, r.Contender)
		}
	}
	return names
}

// Table writes results for people.
func Table(w io.Writer, results []Result) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "contender\tround\tseconds\tmessages/s\tof the floor\tRSS MB\tCPU s\tdatabase CPU s\tlost\tphantom\tduplicated\tinverted\t")
	for _, r := range results {
		round, ratio := fmt.Sprint(r.Round), "–"
		if r.Round == 0 {
			round = "median"
		}
		if r.RatioToFloor > 0 {
			ratio = fmt.Sprintf("%.2f", r.RatioToFloor)
		}
		fmt.Fprintf(tw, "%s\t%s\t%.2f\t%.0f\t%s\t%.0f\t%.2f\t%.2f\t%d\t%d\t%d\t%d\t\n", r.Contender, round, r.Seconds, r.Rate, ratio,
			r.RSSMB, r.RelayCPU, r.DatabaseCPU, r.Lost, r.Phantom, r.Duplicated, r.Inverted)
	}
	return tw.Flush()
}
