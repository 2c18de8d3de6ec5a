package main

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/proof/rig"
)

// Result is one contender's run, or with Round 0 the summary of its runs: medians, the largest memory,
// and the sum of what was wrong. Its form as JSON is a contract.
type Result struct {
	Bench      string `json:"bench"` // drain, latency, write or strategies
	Contender  string `json:"contender"`
	Broker     string `json:"broker"`
	Sweep      string `json:"sweep,omitempty"` // the setting that is varied, and its value
	Value      string `json:"value,omitempty"`
	TargetRate int    `json:"target_rate,omitempty"` // of a latency, messages per second
	Workload   string `json:"workload,omitempty"`    // of a comparison of strategies: one of Workloads

	Messages int `json:"messages"`
	Bytes    int `json:"bytes"`
	Keys     int `json:"keys"`
	Relays   int `json:"relays"`
	Round    int `json:"round"`

	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"rate"` // messages, or transactions, per second

	// RatioToFloor is of the same round: of the rates, and in a latency of the p50s. 0 without a floor.
	RatioToFloor float64 `json:"ratio_to_floor"`
	RatioToFair  float64 `json:"ratio_to_fair,omitempty"` // of the rates, to the fair floor
	P99Ratio     float64 `json:"p99_ratio_to_floor,omitempty"`

	// Of a drain: how old messages were which were all due at its beginning. Of a latency: from the
	// return of COMMIT to the consumer. Of writing: of a whole transaction.
	P50 float64 `json:"p50_ms"`
	P95 float64 `json:"p95_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`

	// From the moment at which a message was due to the return of COMMIT: whether the load was kept.
	WriteP50 float64 `json:"write_p50_ms,omitempty"`
	WriteP99 float64 `json:"write_p99_ms,omitempty"`

	RSSMB       float64 `json:"rss_mb"` // peak of the contender's processes, MiB: of several, the sum
	RelayCPU    float64 `json:"relay_cpu_s"`
	DatabaseCPU float64 `json:"database_cpu_s"` // of the whole server, writers' part included

	// Without load, as a share of one core.
	IdleCPU         float64 `json:"idle_cpu,omitempty"`
	IdleDatabaseCPU float64 `json:"idle_database_cpu,omitempty"`

	// Of a drain: from the start of its process until it reads, which Rate leaves out and WholeRate has in it.
	StartMS   float64 `json:"start_ms,omitempty"`
	WholeRate float64 `json:"whole_rate,omitempty"`

	// Of a comparison of strategies.
	RatioToSnapshot float64 `json:"ratio_to_snapshot,omitempty"` // of the rates
	WALMB           float64 `json:"wal_mb,omitempty"`            // written during the drain, MiB
	DeadRows        int64   `json:"dead_rows,omitempty"`         // that the drain left
	VacuumMS        float64 `json:"vacuum_ms,omitempty"`         // a VACUUM after it
	StallMS         float64 `json:"stall_ms,omitempty"`          // longest gap between arrivals beside an open transaction

	Lost       uint64 `json:"lost"`
	Phantom    uint64 `json:"phantom"`
	Duplicated uint64 `json:"duplicated"`
	Inverted   uint64 `json:"inverted"`
	Corrupted  uint64 `json:"corrupted"`

	Spread *Spread `json:"spread,omitempty"` // of a summary

	Settings map[string]string `json:"settings"`
	Versions map[string]string `json:"versions"`
	Machine  rig.Machine       `json:"machine"`
	Date     string            `json:"date"`
}

// Spread has the lowest and the highest of several rounds.
type Spread struct {
	Rate         [2]float64 `json:"rate"`
	RatioToFloor [2]float64 `json:"ratio_to_floor"`
	RatioToFair  [2]float64 `json:"ratio_to_fair"`
	P50          [2]float64 `json:"p50_ms"`
	P99          [2]float64 `json:"p99_ms"`
}

// checked takes over a verdict.
func (r *Result) checked(report check.Report) {
	r.Lost, r.Phantom, r.Duplicated = report.Lost, report.Phantom, report.Duplicated
	r.Inverted, r.Corrupted = report.Inverted, report.Corrupted
}

// compare fills in the ratios of one round's results: to the floor, and in a comparison of strategies to the default
// one with as many workers. The reader of the log, and the relay with transactions, have floors of their own, which
// count if they took part.
func compare(round []Result) {
	for i := range round {
		r := &round[i]
		same := func(b *Result) bool { return b.TargetRate == r.TargetRate }
		floors := []string{Floor, Insert}
		for contender, floor := range map[string]string{Replication: Pgoutput, CatchUp: Pgoutput, ExactlyOnce: Relay} {
			if r.Contender == contender {
				floors = []string{floor, Floor}
			} else if r.Contender == floor && find(round, same, contender) != nil {
				floors = []string{Floor, floor}
			}
		}
		if base := find(round, same, floors...); base == nil {
			continue
		} else if r.Bench == "latency" {
			r.RatioToFloor, r.P99Ratio = ratio(r.P50, base.P50), ratio(r.P99, base.P99)
		} else {
			r.RatioToFloor = ratio(r.Rate, base.Rate)
		}
	}
	for i := range round {
		if base := find(round, func(*Result) bool { return true }, Fair); base != nil {
			round[i].RatioToFair = ratio(round[i].Rate, base.Rate)
		}
	}
	for i := range round {
		r := &round[i]
		if base := find(round, func(b *Result) bool { return b.Relays == r.Relays }, Snapshot); base != nil {
			r.RatioToSnapshot = ratio(r.Rate, base.Rate)
		}
	}
}

// find returns the result of the first of some contenders that has one.
func find(round []Result, where func(*Result) bool, contenders ...string) *Result {
	for _, name := range contenders {
		for i := range round {
			if round[i].Contender == name && where(&round[i]) {
				return &round[i]
			}
		}
	}
	return nil
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// series names the runs that are summarised together.
type series struct {
	bench, broker, sweep, value string
	workload                    string
	bytes, keys, relays, target int
	backlog                     int
	contender                   string
}

func (r *Result) series() series {
	s := series{r.Bench, r.Broker, r.Sweep, r.Value, r.Workload, r.Bytes, r.Keys, r.Relays, r.TargetRate, 0, r.Contender}
	if r.Bench == "drain" || r.Bench == "strategies" {
		s.backlog = r.Messages // elsewhere it differs from round to round
	}
	return s
}

// Summaries returns one result for each contender, and for each value and rate: the median of each
// figure over the rounds, with the spread. The contenders are in the order of the first round.
func Summaries(runs []Result) []Result {
	var order []series
	groups := make(map[series][]Result)
	for _, r := range runs {
		if r.Round == 0 {
			continue
		}
		s := r.series()
		if groups[s] == nil {
			order = append(order, s)
		}
		groups[s] = append(groups[s], r)
	}
	// Rates take turns within a round; a reader wants them together.
	slices.SortStableFunc(order, func(a, b series) int { return cmp.Compare(a.target, b.target) })
	var out []Result
	for _, s := range order {
		out = append(out, summary(groups[s]))
	}
	return out
}

func summary(runs []Result) Result {
	m := runs[0]
	m.Round = 0
	field := func(r *Result, i int) reflect.Value { return reflect.ValueOf(r).Elem().Field(i) }
	lowHigh := make(map[string][2]float64)
	for i := range reflect.TypeFor[Result]().NumField() {
		switch field(&m, i).Kind() {
		case reflect.Float64:
			var values []float64
			for r := range runs {
				values = append(values, field(&runs[r], i).Float())
			}
			slices.Sort(values)
			field(&m, i).SetFloat(median(values))
			lowHigh[reflect.TypeFor[Result]().Field(i).Name] = [2]float64{values[0], values[len(values)-1]}
		case reflect.Uint64: // what was wrong
			for r := range runs[1:] {
				field(&m, i).SetUint(field(&m, i).Uint() + field(&runs[r+1], i).Uint())
			}
		}
	}
	m.RSSMB = lowHigh["RSSMB"][1]
	m.Spread = &Spread{lowHigh["Rate"], lowHigh["RatioToFloor"], lowHigh["RatioToFair"], lowHigh["P50"], lowHigh["P99"]}
	for _, r := range runs[1:] {
		m.DeadRows = max(m.DeadRows, r.DeadRows)
		if m.Bench != "drain" && m.Bench != "strategies" {
			m.Messages += r.Messages
		}
	}
	return m
}

// median is the middle of sorted values, or of an even number the mean of the two in the middle.
func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
