package main

import (
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

// goodVerdict is that of a run with all the faults.
func goodVerdict() verdict {
	return verdict{
		Report:  check.Report{Committed: 14812, RolledBack: 702, Delivered: 14811, DeadLettered: 1, Duplicated: 3},
		Took:    33 * time.Second,
		Latency: latencies{Count: 14811, P50: 3 * time.Millisecond, P95: 2 * time.Second, P99: 3600 * time.Millisecond},
		Calm:    latencies{Count: 9000, P50: 2100 * time.Microsecond, P95: 4 * time.Millisecond, P99: 9800 * time.Microsecond},
		Faults: []result{
			{Fault: "rollbacks", What: "600 transactions rolled back", Outcome: "none of their events was delivered", Done: true},
			{Fault: "poison", What: "poison message of 96 KiB", Outcome: "dead letter (refused), order-0 went on", Done: true},
			{Fault: "kill", What: "relay-1 killed (SIGKILL)", Outcome: "relay-2 took over after 3.1 s", Done: true},
			{Fault: "long", What: "long transaction, 5.4 s", Outcome: "2,700 delivered meanwhile, itself after 3.6 ms", Done: true},
			{Fault: "broker", What: "broker down for 3.0 s", Outcome: "1,500 events waited in PostgreSQL meanwhile", Done: true},
		},
		Dead: []deadLetter{{Order: "order-0", Reason: "refused",
			Error: "nats: stream \"ORDERS\": message size exceeds maximum allowed (error 10054)", Expected: true}},
		Postgres: "PostgreSQL 18.6", Broker: "NATS JetStream 2.15.2",
	}
}

func TestTheVerdictReadsAsItShould(t *testing.T) {
	t.Parallel()
	good := goodVerdict()
	good.judge(endScript)
	golden(t, "verdict-good", good.text(style{})+next(style{}))

	bad := goodVerdict()
	bad.Report.Lost, bad.Report.Inverted, bad.Report.Unknown = 2, 1, 4
	bad.Report.Examples.Lost = []check.Example{{Key: 7, Seq: 42}, {Key: 7, Seq: 43}}
	bad.Faults[2].Done = false
	bad.Dead = append(bad.Dead, deadLetter{Order: "order-7", Reason: "exhausted", Error: "no."})
	bad.judge(endScript)
	golden(t, "verdict-bad", bad.text(style{}))

	early := goodVerdict()
	early.Pending, early.Faults, early.Dead, early.Report.DeadLettered = 12, nil, nil, 0
	early.judge(endNow)
	golden(t, "verdict-early", early.text(style{}))
}

func TestAGoodVerdictFitsATerminalOf80(t *testing.T) {
	t.Parallel()
	v := goodVerdict()
	v.judge(endScript)
	for line := range strings.Lines(v.text(style{color: true}) + next(style{color: true})) {
		if n := visible(strings.TrimRight(line, "\n")); n > 80 {
			t.Errorf("%d wide: %s", n, line)
		}
	}
}

func TestTheVerdictIsGoodOnlyIfEverythingIs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(*verdict)
		how   end
		want  string // in the reasons; "" for a good verdict
	}{
		"nothing wrong":                    {func(*verdict) {}, endScript, ""},
		"duplicates":                       {func(v *verdict) { v.Report.Duplicated = 9 }, endScript, ""},
		"lost":                             {func(v *verdict) { v.Report.Lost = 1 }, endDrain, "lost"},
		"phantom":                          {func(v *verdict) { v.Report.Phantom = 1 }, endNow, "phantom"},
		"inverted":                         {func(v *verdict) { v.Report.Inverted = 1 }, endNow, "out of order"},
		"corrupted":                        {func(v *verdict) { v.Report.Corrupted = 1 }, endNow, "corrupted"},
		"misrouted":                        {func(v *verdict) { v.Report.Misrouted = 1 }, endNow, "belong"},
		"a dead letter that wasn't poison": {func(v *verdict) { v.Dead[0].Expected = false }, endDrain, "not poison"},
		"poison that isn't a dead letter":  {func(v *verdict) { v.Faults[1].Done = false }, endDrain, "should be dead letters"},
		"poison, and no time to see it":    {func(v *verdict) { v.Faults[1].Done = false }, endNow, ""},
		"nothing delivered":                {func(v *verdict) { v.Report.Delivered = 0 }, endDrain, "nothing was delivered"},
		"a fault not done":                 {func(v *verdict) { v.Faults[4].Done = false }, endScript, `"broker"`},
		"a fault not tried":                {func(v *verdict) { v.Faults = v.Faults[:4] }, endScript, `"broker"`},
		"faults are a person's choice":     {func(v *verdict) { v.Faults = nil }, endDrain, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := goodVerdict()
			test.spoil(&v)
			v.judge(test.how)
			reasons := strings.Join(v.Reasons, "\n")
			if v.OK != (test.want == "") || !strings.Contains(reasons, test.want) {
				t.Errorf("OK is %v because of %q, want %q in it", v.OK, reasons, test.want)
			}
		})
	}
}
