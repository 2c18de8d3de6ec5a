package config_test

import (
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/internal/configtest"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay/mapped"
)

const withSource = `
database: {url: "postgres://localhost/orders"}
destinations:
  - {name: a, broker: {stdout: {}}, source: SOURCE}
`

func TestASourceGoesOverItsPreset(t *testing.T) {
	t.Parallel()
	l, complaint := configtest.Try(t, strings.Replace(withSource, "SOURCE",
		`{preset: outbox_events, strategy: advisory, table: shop.outbox_events, columns: {key: "all", header_columns: [dedup=dedup_key]}, failure: {dead_table: outbox_dead}, lock: ["-1", "2"], purge: {keep: 24h}}`, 1), load.Input{})
	if complaint != "" {
		t.Fatal(complaint)
	}
	d := l.Config.Destinations[0]
	strategy, m := d.Source.Resolve()
	if strategy != "advisory" || m.Table != "shop.outbox_events" || m.Key != "all" || m.Topic != "{aggregate_type}" ||
		m.Failure.Attempts != "attempt" ||
		m.Failure.DeadTable != "outbox_dead" || m.Done.Column != "published_at" || len(m.Lock) != 2 || m.Lock[0] != -1 ||
		m.HeaderColumns[0] != (mapping.HeaderColumn{Name: "dedup", Column: "dedup_key"}) {
		t.Errorf("strategy %s, mapping %+v", strategy, m)
	}
	if d.Delivery.OnExhausted != "dead_letter" {
		t.Errorf("the policy is %s, but there is a place for dead letters", d.Delivery.OnExhausted)
	}
}

func TestATableWithoutAPlaceForDeadLettersBlocksUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	l, complaint := configtest.Try(t, strings.Replace(withSource, "SOURCE", `{preset: outbox}`, 1), load.Input{})
	if complaint != "" {
		t.Fatal(complaint)
	}
	if got := l.Config.Destinations[0].Delivery.OnExhausted; got != "block" {
		t.Errorf("the policy is %s", got)
	}
	_, complaint = configtest.Try(t, strings.Replace(withSource, "SOURCE", `{preset: outbox}, delivery: {on_exhausted: dead_letter}`, 1), load.Input{})
	if !strings.Contains(complaint, "the table has no place for dead letters") {
		t.Errorf("got %q", complaint)
	}
}

func TestFaultsOfASourceSayWhatIsMissing(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		`{preset: outbox_event5}`: `did you mean "outbox_events"?`,
		`{table: t}`:              "auto needs a preset",
		`{strategy: lease, table: t, columns: {id: id, topic: x, payload: p}, done: {how: delete}, rows_may_be_deleted: true}`: "strategy lease reserves rows",
		`{strategy: advisory, table: t, columns: {id: id, topic: x, payload: p}}`:                                              "strategy advisory marks rows",
		`{strategy: serial, table: t, columns: {id: id, topic: x, payload: p}}`:                                                "strategy serial keeps offsets in a table",
		`{preset: outbox, columns: {topic: "{"}}`:                                                                              `"{" is not a template`,
		`{preset: outbox_messages_serial, columns: {priority: urgency}}`:                                                       "nothing can overtake",
		`{preset: outbox_messages_xmin, types: [ad]}`:                                                                          "an order of types is given",
		`{preset: outbox_messages_xmin, order: created_at}`:                                                                    "a column for the order is given",
		`{preset: outbox, lock: [x]}`:                                                                                          `"x" is not a whole number`,
		`{preset: outbox_messages, purge: {}}`:                                                                                 "leaves no row that is marked as delivered",
		`{preset: outbox}, shard_groups: 2`:                                                                                    "has no groups",
		`{preset: outbox, strategy: replication, done: {how: delete}, types: [a], purge: {}}`:                                  "can't make use of: done, purge, types",
		`{preset: outbox, strategy: replication}, shard_groups: 2`:                                                             "has no groups",
		`{preset: outbox}, replication: {}`:                                                                                    "give source.strategy: replication",
		`{preset: outbox, strategy: replication}, replication: {heartbeat: 1s}`:                                                "have no effect together with source",
		`{preset: transaction_outbox, strategy: replication}, delivery: {on_exhausted: dead_letter}`:                           "no place for dead letters",
		`{strategy: advisory, table: customers, columns: {id: id, topic: x, payload: p}, done: {how: delete}}`:                 "rows_may_be_deleted: true",
		`{preset: outbox_messages, table: customers}`:                                                                          "rows_may_be_deleted: true",
		`{preset: outbox_events, table: customers, purge: {}}`:                                                                 "rows_may_be_deleted: true",
	} {
		_, complaint := configtest.Try(t, strings.Replace(withSource, "SOURCE", source, 1), load.Input{})
		if !strings.Contains(complaint, want) {
			t.Errorf("%s: %q, want %q", source, complaint, want)
		}
	}
	beside := strings.Replace(withSource, "SOURCE", `{preset: outbox}`, 1) + `  - {name: b, broker: {stdout: {}}, source: {preset: outbox, strategy: replication}}`
	if _, complaint := configtest.Try(t, beside, load.Input{}); complaint != "" {
		t.Errorf("a table that is read by its log too: %s", complaint)
	}
	const serial = `{preset: outbox_messages_serial, table: t, offsets: {table: `
	for _, c := range []struct{ first, second, want string }{
		{`{preset: outbox}`, `{preset: outbox}`, "destinations[1].source.table"},
		{`{preset: outbox}`, `{preset: outbox, table: '"outbox"'}`, "destinations[1].source.table"},
		{serial + `o}}`, serial + `o}}`, "destinations[1].source.offsets.table"},
		{serial + `o}}`, serial + `p}}`, ""},
		{`{preset: outbox, table: t}`, serial + `o}}`, ""},
	} {
		both := strings.Replace(withSource, "SOURCE", c.first, 1) + `  - {name: b, broker: {stdout: {}}, source: ` + c.second + `}`
		_, complaint := configtest.Try(t, both, load.Input{})
		if c.want == "" && complaint != "" || !strings.Contains(complaint, c.want) ||
			c.want != "" && !strings.Contains(complaint, config.OnceOnly) {
			t.Errorf("%s beside %s: got %q", c.second, c.first, complaint)
		}
	}
}

// A column of bytes is a key as it is where keys are bytes; where they are text, or a format writes text, it has one
// encoding for all rows.
func TestKeysAreBytesWhereTheBrokersAre(t *testing.T) {
	t.Parallel()
	for broker, want := range map[string]bool{
		`{kafka: {brokers: ["localhost:9092"]}}`:                            true,
		`{redis: {addresses: ["localhost:6379"]}}`:                          true,
		`{kafka: {brokers: ["localhost:9092"]}}, format: {cloudevents: {}}`: false,
		`{kafka: {brokers: ["localhost:9092"]}}, format: {debezium: {}}`:    false,
		`{nats: {url: "nats://localhost:4222", stream: events}}`:            false,
		`{http: {url: "http://localhost/hook"}}`:                            false,
		`{stdout: {}}`:                                                      false,
	} {
		l, complaint := configtest.Try(t, strings.NewReplacer("{stdout: {}}", broker, "SOURCE",
			"{preset: outbox_event}").Replace(withSource), load.Input{})
		if complaint != "" {
			t.Errorf("%s: %s", broker, complaint)
			continue
		}
		if got := l.Config.Destinations[0].RawKeys(); got != want {
			t.Errorf("%s: raw keys are %v", broker, got)
		}
	}
}

// What is shown of a table's source is what the library uses, and a strategy has no setting that does nothing.
func TestASourcesDefaultsAreThoseOfItsStrategy(t *testing.T) {
	t.Parallel()
	for preset, want := range map[string]struct{ strategy, shown string }{
		"outbox_events":            {"skiplocked", "lease: 3s|max_holds: 100000|transactions: 4"},
		"outbox_messages_advisory": {"advisory", "lease: 3s|max_holds: 100000|transactions: 0"},
		"outbox_messages_serial":   {"serial", "lease: 3s|max_holds: 10000|transactions: 0"},
		"outbox_messages_xmin":     {"xmin", "lease: 3s|max_holds: 10000|transactions: 0"},
	} {
		l, complaint := configtest.Try(t, strings.Replace(withSource, "SOURCE", "{preset: "+preset+"}", 1), load.Input{})
		if complaint != "" {
			t.Fatal(complaint)
		}
		strategy, _, cfg := l.Config.Destinations[0].Library(0)
		library := mapped.Defaults(strategy)
		if strategy != want.strategy || cfg.MaxHolds != library.MaxHolds || cfg.Lease != library.Lease ||
			cfg.PollBusy != library.PollBusy || cfg.PollIdle != library.PollIdle || cfg.LagObjective != library.LagObjective ||
			strategy == mapping.SkipLocked && cfg.Transactions != library.Transactions {
			t.Errorf("%s: the file gives %+v, the library %+v", preset, cfg, library)
		}
		for _, line := range strings.Split(want.shown, "|") {
			if !strings.Contains(l.Show(), line+" ") {
				t.Errorf("%s: %q isn't shown:\n%s", preset, line, l.Show())
			}
		}
	}
	l, complaint := configtest.Try(t, strings.Replace(withSource, "SOURCE", `{preset: outbox_events, max_holds: 7, transactions: 2}`, 1), load.Input{})
	if _, _, cfg := l.Config.Destinations[0].Library(0); complaint != "" || cfg.MaxHolds != 7 || cfg.Transactions != 2 {
		t.Errorf("got %+v, %s", cfg, complaint)
	}
	for source, fault := range map[string]string{
		`{preset: outbox_event, transactions: 2}`:                "source.transactions: 2, but strategy advisory has no transactions open",
		`{preset: outbox, strategy: replication, notify: c}`:     "can't make use of: notify",
		`{preset: outbox_events, max_holds: -1}`:                 "source.max_holds: -1 is too small",
		`{preset: outbox_event}, lease: 5ms`:                     "lease: 5ms, it must be at least 100ms",
		`{preset: outbox_event}, poll: {busy: 50ms, idle: 20ms}`: "poll.idle: 20ms, it must be at least 50ms",
	} {
		_, complaint := configtest.Try(t, strings.Replace(withSource, "SOURCE", source, 1), load.Input{})
		if !strings.Contains(complaint, fault) {
			t.Errorf("%s: %q is not in %q", source, fault, complaint)
		}
	}
}
