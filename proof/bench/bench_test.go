package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
)

func TestADrainDeliversEverythingByEveryContender(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"kafka", "nats"} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			cfg := DrainConfig{Common: common(t, broker), Messages: 3000, Bytes: 200, Keys: 50, Sweep: "relays", Values: []string{"1", "3"}}
			cfg.Rounds = 2
			results, err := Drain(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if len(results) != 2*2*2 {
				t.Fatalf("%d results of two points, two rounds and two contenders", len(results))
			}
			for _, r := range results {
				if broken := r.Broken(); broken != "" || r.Lost > 0 {
					t.Errorf("%s with %s relays: %s", r.Contender, r.Value, broken)
				}
				if r.Rate <= 0 || r.Seconds <= 0 || r.RatioToFloor <= 0 || r.P50 <= 0 || r.P50 > r.P95 || r.P95 > r.P99 || r.P99 > r.Max {
					t.Errorf("the figures contradict each other: %+v", r)
				}
				if want := map[string]int{Floor + "1": 1, Floor + "3": 1, Relay + "1": 1, Relay + "3": 3}[r.Contender+r.Value]; r.Relays != want {
					t.Errorf("%s with relays=%s ran as %d", r.Contender, r.Value, r.Relays)
				}
			}
			if first, third := results[0].Contender, results[2].Contender; first == third {
				t.Errorf("both rounds begin with %s: they should take turns", first)
			}
		})
	}
}

func TestReadersOfTheLogTakePartWhenTheyAreNamed(t *testing.T) {
	t.Parallel()
	drain := DrainConfig{Common: common(t, "kafka"), Messages: 2000, Keys: 50}
	drain.Contenders = []string{Pgoutput, Replication}
	results, err := Drain(t.Context(), drain)
	if err != nil {
		t.Fatal(err)
	}
	latency := LatencyConfig{Common: common(t, "kafka"), Rates: []int{300}, For: time.Second, WarmUp: 300 * time.Millisecond, Idle: 100 * time.Millisecond}
	latency.Contenders = []string{Pgoutput, Replication}
	more, err := Latency(t.Context(), latency)
	if err != nil {
		t.Fatal(err)
	}
	if results = append(results, more...); len(results) != 4 {
		t.Fatalf("%d results", len(results))
	}
	for _, r := range results {
		if broken := r.Broken(); broken != "" || r.Lost > 0 || r.RatioToFloor <= 0 || r.Messages == 0 {
			t.Errorf("%s: %s %+v", r.Contender, broken, r)
		}
	}
}

func TestExactlyOnceIsMeasuredBesideTheRelayWithoutIt(t *testing.T) {
	t.Parallel()
	cfg := DrainConfig{Common: common(t, "kafka"), Messages: 3000, Keys: 50}
	cfg.Rounds, cfg.Contenders = 2, []string{Relay, ExactlyOnce}
	results, err := Drain(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 4 {
		t.Fatalf("%d results of two rounds and two contenders", len(results))
	}
	for _, r := range results {
		if broken := r.Broken(); broken != "" || r.Lost > 0 || r.Rate <= 0 {
			t.Errorf("%s: %s %+v", r.Contender, broken, r)
		}
		if want := r.Contender == Relay; (r.RatioToFloor == 1) != want {
			t.Errorf("the ratio of %s is %v: it is to the relay", r.Contender, r.RatioToFloor)
		}
	}
	cfg.Broker = "nats"
	if err := cfg.Validate(); err == nil {
		t.Error("NATS has no transactions, and takes part")
	}
}

func TestTheFloorDeliversMessagesLargerThanItsPages(t *testing.T) {
	t.Parallel()
	cfg := DrainConfig{Common: common(t, "kafka"), Messages: 40, Bytes: 400_000, Keys: 1}
	cfg.Contenders = []string{Floor}
	results, err := Drain(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r := results[0]; r.Lost+r.Phantom+r.Duplicated+r.Corrupted+r.Inverted > 0 {
		t.Errorf("%+v", r)
	}
}

func TestADrainGoesThroughADistanceAndBesideHeldTransactions(t *testing.T) {
	t.Parallel()
	cfg := DrainConfig{Common: common(t, "nats"), Messages: 500, Keys: 7, Held: true, Sweep: "rtt", Values: []string{"0s", "1ms"}}
	results, err := Drain(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if broken := r.Broken(); broken != "" {
			t.Errorf("%s at %s: %s", r.Contender, r.Value, broken)
		}
		if want := cfg.Values[i/2]; r.Settings["rtt"] != want || r.Settings["held"] != "on" {
			t.Errorf("the settings of %s=%s are %v", r.Sweep, r.Value, r.Settings)
		}
	}
	if len(results) != 4 {
		t.Errorf("%d results", len(results))
	}
}

func TestALatencyIsMeasuredForEveryContender(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"kafka", "nats"} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			cfg := LatencyConfig{Common: common(t, broker), Rates: []int{300}, For: time.Second, WarmUp: 300 * time.Millisecond, Idle: 100 * time.Millisecond}
			results, err := Latency(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, r := range results {
				names = append(names, r.Contender)
				if broken := r.Broken(); broken != "" {
					t.Errorf("%s: %s", r.Contender, broken)
				}
				if r.Messages < 100 || r.Messages != results[0].Messages {
					t.Errorf("%s was measured by %d messages, %s by %d: the load is not the same", r.Contender, r.Messages, results[0].Contender, results[0].Messages)
				}
				if r.P50 <= 0 || r.P50 > r.P95 || r.P95 > r.P99 || r.P99 > r.Max || r.WriteP50 <= 0 {
					t.Errorf("the figures contradict each other: %+v", r)
				}
			}
			if !slices.Equal(names, []string{Floor, Relay, InProcess}) {
				t.Errorf("contenders are %q", names)
			}
		})
	}
}

func TestWritingCountsWhatIsInTheTables(t *testing.T) {
	t.Parallel()
	results, err := Write(t.Context(), WriteConfig{Common: common(t, ""), For: 300 * time.Millisecond, Writers: 2})
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 3 {
		t.Fatalf("%d results", len(results))
	}
	for _, r := range results {
		if r.Broken() != "" || r.Messages == 0 || r.RatioToFloor <= 0 {
			t.Errorf("%+v", r)
		}
	}
}

// The keys that a program which reads results may rely on.
func TestAResultHasTheDocumentedKeys(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(Result{})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Fields(`bench contender broker messages bytes keys relays round seconds rate ratio_to_floor
		p50_ms p95_ms p99_ms max_ms rss_mb relay_cpu_s database_cpu_s lost phantom duplicated inverted corrupted
		settings versions machine date`) {
		if _, ok := got[key]; !ok {
			t.Errorf("%s is missing in %s", key, text)
		}
	}
}

func TestAnInterruptedRunLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	pg := servers.OwnPostgres(t)
	cfg := DrainConfig{Common: common(t, "nats"), Messages: 2000, Keys: 10}
	cfg.Postgres, cfg.Rounds = pg.URL("postgres"), 1000
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg.Progress = writerFunc(func(line []byte) (int, error) {
		if strings.Contains(string(line), "round 2 of") {
			cancel()
		}
		return len(line), nil
	})
	results, err := Drain(ctx, cfg)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("Drain returned %v after it was interrupted", err)
	}
	if len(results) < 2 {
		t.Errorf("what was measured is lost: %d results", len(results))
	}
	conn, err := pgx.Connect(t.Context(), cfg.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var databases, backends int
	err = conn.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM pg_database WHERE datname LIKE 'outbox_bench_%'), (SELECT count(*) FROM pg_stat_activity WHERE datname LIKE 'outbox_bench_%')").Scan(&databases, &backends)
	if err != nil {
		t.Fatal(err)
	}
	if databases+backends > 0 {
		t.Errorf("%d databases and %d connections are left", databases, backends)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestABrokerIsWarmedUpByMessagesThatArrive(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"kafka", "nats"} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			common := common(t, broker)
			if errs := common.defaults(Floor); len(errs) > 0 {
				t.Fatal(errs)
			}
			b, err := openBed(t.Context(), &common, true, false)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.close)
			const messages = 12_000 // more than a page
			if err := b.warmUp(t.Context(), messages); err != nil {
				t.Fatal(err)
			}
			if n, err := b.to.count(t.Context()); err != nil || n != messages {
				t.Errorf("%d messages arrived of %d, %v", n, messages, err)
			}
		})
	}
}

func TestAPartEndsWithWhoeverStartedIt(t *testing.T) {
	t.Parallel()
	common := common(t, "nats")
	if errs := common.defaults(Floor); len(errs) > 0 {
		t.Fatal(errs)
	}
	b, err := openBed(t.Context(), &common, true, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	if err := b.freshDatabase(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.to.fresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	p, err := startPart(order{Part: partCopy, Database: b.url, Broker: "nats", Address: b.to.address(), Topic: b.topic})
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	if _, err := p.begun(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.exited:
	case <-time.After(20 * time.Second):
		t.Error("its standard input has ended, and it goes on")
	}
}

func TestARunThatCannotSucceedSaysWhy(t *testing.T) {
	t.Parallel()
	good := Common{Binary: "outbox", Progress: io.Discard}
	for name, test := range map[string]struct {
		validate func() error
		want     []string
	}{
		"all faults together": {
			DrainConfig{Common: Common{Broker: "carrier pigeon", Contenders: []string{"nobody"}, Rounds: -1}, Bytes: 3}.Validate,
			[]string{`broker "carrier pigeon": want kafka or nats`, `contender "nobody": want some of floor, relay`, "-1 rounds", "3 bytes", "binary is missing"},
		},
		"unknown sweep":      {DrainConfig{Common: good, Sweep: "colour", Values: []string{"red"}}.Validate, []string{`sweep "colour": want one of [batch bytes backlog keys relays rtt held]`}},
		"sweep without":      {DrainConfig{Common: good, Sweep: "keys"}.Validate, []string{"sweep keys has no values"}},
		"bad number":         {DrainConfig{Common: good, Sweep: "keys", Values: []string{"many"}}.Validate, []string{"sweep keys=many: want a positive number"}},
		"bad duration":       {DrainConfig{Common: good, Sweep: "rtt", Values: []string{"1"}}.Validate, []string{"sweep rtt=1: want a duration"}},
		"bad switch":         {DrainConfig{Common: good, Sweep: "held", Values: []string{"yes"}}.Validate, []string{"sweep held=yes: want on or off"}},
		"value out of range": {DrainConfig{Common: good, Sweep: "relays", Values: []string{"1", "65"}}.Validate, []string{"65 relays: want 1 to 64"}},
		"distant Kafka":      {DrainConfig{Common: Common{Binary: "outbox", Address: "localhost:9092"}, RTT: 1}.Validate, []string{"leave out its address"}},
		"twice":              {LatencyConfig{Common: Common{Binary: "outbox", Contenders: []string{Relay, Relay}}}.Validate, []string{`contender "relay" is named twice`}},
		"rate":               {LatencyConfig{Common: good, Rates: []int{0}}.Validate, []string{"a rate of 0"}},
		"writers":            {WriteConfig{Writers: -1}.Validate, []string{"-1 writers"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := test.validate()
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v doesn't say %q", err, want)
				}
			}
		})
	}
	for _, valid := range []error{DrainConfig{Common: good}.Validate(), LatencyConfig{Common: good}.Validate(), WriteConfig{}.Validate()} {
		if valid != nil {
			t.Errorf("defaults are refused: %v", valid)
		}
	}
}
