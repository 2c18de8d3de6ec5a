package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestADrainDeliversEverythingByEveryContender(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"kafka", "nats"} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, "drain", broker)
			cfg.Messages, cfg.Bytes, cfg.Keys, cfg.Sweep, cfg.Rounds = 3000, 200, 50, "relays=1,3", 2
			results, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if len(results) != 2*2*3 {
				t.Fatalf("%d results of two points, two rounds and three contenders", len(results))
			}
			for _, r := range results {
				if broken := r.Broken(); broken != "" || r.Lost > 0 {
					t.Errorf("%s with %s relays: %s", r.Contender, r.Value, broken)
				}
				if r.Rate <= 0 || r.Seconds <= 0 || r.RatioToFloor <= 0 || r.RatioToFair <= 0 || r.WholeRate >= r.Rate ||
					r.P50 <= 0 || r.P50 > r.P95 || r.P95 > r.P99 || r.P99 > r.Max {
					t.Errorf("the figures contradict each other: %+v", r)
				}
				if want := map[string]int{Floor + "1": 1, Floor + "3": 1, Fair + "1": 1, Fair + "3": 1,
					Relay + "1": 1, Relay + "3": 3}[r.Contender+r.Value]; r.Relays != want {
					t.Errorf("%s with relays=%s ran as %d", r.Contender, r.Value, r.Relays)
				}
			}
			if first, next := results[0].Contender, results[3].Contender; first == next {
				t.Errorf("both rounds begin with %s: they should take turns", first)
			}
		})
	}
}

func TestReadersOfTheLogTakePartWhenTheyAreNamed(t *testing.T) {
	t.Parallel()
	drain := config(t, "drain", "kafka")
	drain.Messages, drain.Keys, drain.Contenders = 2000, 50, []string{Pgoutput, Replication}
	results, err := Run(t.Context(), drain)
	if err != nil {
		t.Fatal(err)
	}
	latency := latencyConfig(t, "kafka")
	latency.Contenders = []string{Pgoutput, Replication}
	more, err := Run(t.Context(), latency)
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
	cfg := config(t, "drain", "kafka")
	cfg.Messages, cfg.Keys, cfg.Rounds, cfg.Contenders = 3000, 50, 2, []string{Relay, ExactlyOnce}
	results, err := Run(t.Context(), cfg)
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
	cfg := config(t, "drain", "kafka")
	cfg.Messages, cfg.Bytes, cfg.Keys, cfg.Contenders = 40, 400_000, 1, []string{Floor}
	results, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r := results[0]; r.Lost+r.Phantom+r.Duplicated+r.Corrupted+r.Inverted > 0 {
		t.Errorf("%+v", r)
	}
}

func TestADrainGoesThroughADistanceAndBesideHeldTransactions(t *testing.T) {
	t.Parallel()
	cfg := config(t, "drain", "nats")
	cfg.Messages, cfg.Keys, cfg.Held, cfg.Sweep = 500, 7, true, "rtt=0s,1ms"
	results, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if broken := r.Broken(); broken != "" {
			t.Errorf("%s at %s: %s", r.Contender, r.Value, broken)
		}
		if want := []string{"0s", "1ms"}[i/3]; r.Settings["rtt"] != want || r.Settings["held"] != "on" {
			t.Errorf("the settings of %s=%s are %v", r.Sweep, r.Value, r.Settings)
		}
	}
	if len(results) != 6 {
		t.Errorf("%d results", len(results))
	}
}

func TestALatencyIsMeasuredForEveryContender(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"kafka", "nats"} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			results, err := Run(t.Context(), latencyConfig(t, broker))
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
					t.Errorf("%s was measured by %d messages, %s by %d: the load is not the same",
						r.Contender, r.Messages, results[0].Contender, results[0].Messages)
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
	cfg := config(t, "write", "")
	cfg.For, cfg.Writers = 300*time.Millisecond, 2
	results, err := Run(t.Context(), cfg)
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
	cfg := config(t, "drain", "nats")
	cfg.Messages, cfg.Keys, cfg.Postgres, cfg.Rounds = 2000, 10, pg.URL("postgres"), 1000
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg.Progress = writerFunc(func(line []byte) (int, error) {
		if strings.Contains(string(line), "round 2 of") {
			cancel()
		}
		return len(line), nil
	})
	results, err := Run(ctx, cfg)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("Run returned %v after it was interrupted", err)
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
	err = conn.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM pg_database WHERE datname LIKE 'outbox_bench_%'), "+
		"(SELECT count(*) FROM pg_stat_activity WHERE datname LIKE 'outbox_bench_%')").Scan(&databases, &backends)
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
			b := openedBed(t, broker)
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
	b := openedBed(t, "nats")
	if err := b.freshDatabase(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.to.fresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	p, err := startPart(order{Part: partCopy, Database: b.url, Broker: "nats", Address: b.to.address, Topic: b.topics[0]})
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	if _, err := (team{p}).begun(t.Context(), false, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.In.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Exited():
	case <-await.Context(t).Done():
		t.Error("its standard input has ended, and it goes on")
	}
}

func TestARunThatCannotSucceedSaysWhy(t *testing.T) {
	t.Parallel()
	good := func(bench string, with Config) func() error {
		with.Bench, with.Binary = bench, "outbox"
		return with.Validate
	}
	for name, test := range map[string]struct {
		validate func() error
		want     []string
	}{
		"all faults together": {
			Config{Bench: "drain", Broker: "carrier pigeon", Contenders: []string{"nobody"}, Rounds: -1, Bytes: 3}.Validate,
			[]string{`broker "carrier pigeon": want kafka or nats`,
				`contender "nobody": want some of floor, fair, relay`, "rounds -1: want at least 1", "bytes 3", "binary is missing"},
		},
		"unknown sweep": {good("drain", Config{Sweep: "colour=red"}),
			[]string{`sweep "colour": want one of [batch bytes headers backlog keys relays viewers rtt held]`}},
		"sweep without":      {good("drain", Config{Sweep: "keys"}), []string{"sweep keys has no values"}},
		"bad number":         {good("drain", Config{Sweep: "keys=many"}), []string{`sweep keys="many" is not a whole number`}},
		"no batch":           {good("drain", Config{Sweep: "batch=0"}), []string{"sweep batch=0: want a positive number"}},
		"bad duration":       {good("drain", Config{Sweep: "rtt=1"}), []string{`sweep rtt="1" has no unit`}},
		"bad switch":         {good("drain", Config{Sweep: "held=yes"}), []string{`sweep held="yes" is neither true nor false`}},
		"value out of range": {good("drain", Config{Sweep: "relays=1,65"}), []string{"relays 65: want 1 to 64"}},
		"distant Kafka":      {good("drain", Config{Address: "localhost:9092", RTT: 1}), []string{"leave out its address"}},
		"negative distance":  {good("drain", Config{RTT: -1}), []string{"rtt -1ns"}},
		"twice":              {good("latency", Config{Contenders: []string{Relay, Relay}}), []string{`contender "relay" is named twice`}},
		"rate":               {good("latency", Config{Rates: []int{0}}), []string{"rate 0"}},
		"writers":            {good("write", Config{Writers: -1}), []string{"writers -1"}},
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
	for _, bench := range []string{"drain", "latency", "write", "strategies"} {
		if err := good(bench, Config{})(); err != nil {
			t.Errorf("defaults of %s are refused: %v", bench, err)
		}
	}
}
