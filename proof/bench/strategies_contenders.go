package main

import (
	"slices"

	"github.com/pgoutbox/outbox/proof/bench/originals"
)

// Names of contenders of a comparison of strategies.
const (
	Snapshot = "snapshot" // the default
	Debezium = "debezium" // Debezium Server
)

// strategy is a contender of a comparison.
type strategy struct {
	name   string
	layout string
	slow   int // the most messages it gets: it takes too long for more; 0 is no bound

	original string // of the package originals
	peer     string // another library, of the program peers
	source   string // a relay's source: the preset's name
	log      bool   // a relay that reads the log
	single   bool   // only one works at a time; more are not run
	groups   bool   // workers share by shard groups

	order func(workers int) bool // whether it promises the order of keys; nil: it is held to no promise
}

func always(int) bool        { return true }
func never(int) bool         { return false }
func alone(workers int) bool { return workers == 1 }

// strategies are all contenders, floor first.
func strategies() []strategy {
	return []strategy{
		{name: Floor, layout: "default", single: true, order: never},
		{name: Snapshot, layout: "default", groups: true, order: always},
		{name: Replication, layout: "default", log: true, single: true, order: always},
		{name: "skiplocked", layout: "queue", source: "outbox_messages", order: alone},
		{name: "advisory", layout: "queue", source: "outbox_messages_advisory", order: always},
		{name: "lease", layout: "reserved", source: "outbox_messages_lease", order: alone},
		{name: "xmin", layout: "offsets", source: "outbox_messages_xmin", groups: true, order: never},
		{name: "serial", layout: "serial", source: "outbox_messages_serial", groups: true, order: always},
		{name: "seed1-v1", layout: "queue", original: originals.LongTx},
		{name: "seed1-v1.1", layout: "queue", original: originals.AdvisoryLock},
		{name: "seed1-v2", layout: "reserved", original: originals.ShortTx},
		{name: "seed1-v3", layout: "offsets", original: originals.Partitions},
		{name: "seed1-v3-repaired", layout: "offsets", original: originals.Repaired},
		{name: "seed1-v4", layout: "serial", original: originals.SerialWrites},
		{name: "seed0", layout: "events", original: originals.Events, slow: 2000},
		{name: "seed2", layout: "event", original: originals.Scheduled, slow: 20_000},
		{name: "seed3", layout: "sequence", original: originals.Polling, slow: 60},
		{name: "seed4", layout: "status", original: originals.Statuses, slow: 100},
		{name: "watermill-offsets", layout: "watermill-offsets", peer: "watermill-offsets", slow: 20_000},
		{name: "watermill-queue", layout: "watermill-queue", peer: "watermill-queue", slow: 20_000},
		{name: "oagudo", layout: "oagudo", peer: "oagudo", slow: 20_000},
		{name: Debezium, layout: Debezium, single: true},
	}
}

// StrategyNames are the contenders of a comparison that need nothing but this program.
func StrategyNames() []string {
	return namesOf(func(s strategy) bool { return !s.foreign() })
}

// foreign contenders are programs of their own.
func (s strategy) foreign() bool { return s.peer != "" || s.name == Debezium }

func namesOf(which func(strategy) bool) (names []string) {
	for _, s := range strategies() {
		if which(s) {
			names = append(names, s.name)
		}
	}
	return names
}

// contenders are those that take part by default, and others that can be named.
func (c *StrategiesConfig) contenders() (usual, more []string) {
	usual = namesOf(func(s strategy) bool {
		return !s.foreign() || s.peer != "" && c.Peers != "" || s.name == Debezium && c.Debezium != ""
	})
	return usual, namesOf(func(s strategy) bool { return !slices.Contains(usual, s.name) })
}

func findStrategy(name string) strategy {
	all := strategies()
	return all[slices.IndexFunc(all, func(s strategy) bool { return s.name == name })]
}
