package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/proof/bench/originals"
)

// Names of contenders.
const (
	Floor     = "floor"     // the barest thing that moves messages at all
	Fair      = "fair"      // the same with the columns, the order and the headers of a relay
	Relay     = "relay"     // "outbox relay" with default settings
	InProcess = "inprocess" // writer and relay in one process

	Replication = "replication" // "outbox relay" that reads the write-ahead log
	CatchUp     = "catchup"     // the same, when it may read the table to catch up
	Pgoutput    = "pgoutput"    // the barest thing that reads it

	ExactlyOnce = "exactlyonce" // "outbox relay" that delivers in transactions of Kafka

	Insert  = "insert"  // a bare INSERT into the outbox
	Without = "without" // no outbox row at all
	Writer  = "writer"  // outbox.Writer

	Snapshot = "snapshot" // the default strategy
	Debezium = "debezium" // Debezium Server
)

// contender is what takes part in a benchmark.
type contender struct {
	name  string
	named bool                   // it takes part only when it is named
	order func(workers int) bool // whether it promises the order of keys; nil: it is held to no promise

	// What its process is; without any of these, "outbox relay".
	part     string // of [RunPart]
	original string // of the package originals
	peer     string // another library, of the program peers

	source string // of a relay: the preset's name
	log    bool   // it reads the log
	groups bool   // workers share by shard groups

	layout string // of its table, in a comparison
	slow   int    // the most messages it gets: it takes too long for more; 0 is no bound
	single bool   // only one works at a time; more are not run
}

func always(int) bool        { return true }
func never(int) bool         { return false }
func alone(workers int) bool { return workers == 1 }

// contenders are all of a benchmark, the floor first.
func contenders(bench string) []contender {
	switch bench {
	case "drain":
		return []contender{
			{name: Floor, part: partCopy, order: never},
			{name: Fair, part: partCopy, order: never},
			{name: Relay, groups: true, order: always},
			{name: Replication, named: true, log: true, order: always},
			{name: CatchUp, named: true, log: true, order: always},
			{name: Pgoutput, named: true, part: partWAL, log: true, order: never},
			{name: ExactlyOnce, named: true, order: always},
		}
	case "latency":
		return []contender{
			{name: Floor, part: partPoll, order: never},
			{name: Relay, order: always},
			{name: InProcess, part: partLoad, order: always},
			{name: Replication, named: true, log: true, order: always},
			{name: Pgoutput, named: true, part: partWAL, order: never},
		}
	case "write":
		return []contender{{name: Insert, order: always}, {name: Writer, order: always}, {name: Without, order: always}}
	}
	return []contender{
		{name: Floor, part: partCopy, layout: "default", single: true, order: never},
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

// findContender returns one by its name.
func findContender(bench, name string) (contender, bool) {
	all := contenders(bench)
	i := slices.IndexFunc(all, func(c contender) bool { return c.name == name })
	if i < 0 {
		return contender{}, false
	}
	return all[i], true
}

// needs says what it lacks, or "".
func (c *contender) needs(cfg *Config) string {
	switch {
	case c.peer != "" && cfg.Peers == "":
		return "--peers names the program that it is in"
	case c.name == Debezium && cfg.Debezium == "":
		return "--debezium names the folder of its distribution"
	case c.name == ExactlyOnce && cfg.Broker != "kafka":
		return "it delivers to Kafka alone"
	}
	return ""
}

// StrategyNames are the contenders of a comparison that need nothing but this program.
func StrategyNames() (names []string) {
	for _, c := range contenders("strategies") {
		if c.needs(&Config{}) == "" {
			names = append(names, c.name)
		}
	}
	return names
}

// Broken says which promise the run did not keep, or "". A floor promises no order and no single delivery, and the one
// that polls loses what commits late. An original, or another's, is held to nothing.
func (r *Result) Broken() string {
	c, found := findContender(r.Bench, r.Contender)
	if !found || c.order == nil {
		return ""
	}
	floor := c.part == partCopy || c.part == partPoll || c.part == partWAL
	if r.Corrupted+r.Phantom > 0 || r.Lost > 0 && !(floor && r.Bench == "latency") || r.Duplicated > 0 && !floor ||
		r.Inverted > 0 && c.order(r.Relays) {
		return fmt.Sprintf("%d lost, %d phantom, %d corrupted, %d duplicated, %d inverted",
			r.Lost, r.Phantom, r.Corrupted, r.Duplicated, r.Inverted)
	}
	return ""
}

// launch starts the contender's processes, and returns those that it has started.
func (r *run) launch() (team, error) {
	var t team
	for i := range r.workers {
		p, err := r.launchOne(i)
		if err != nil {
			return t, err
		}
		t = append(t, p)
	}
	return t, nil
}

func (r *run) launchOne(i int) (*process, error) {
	o := r.order(r.part)
	o.Group = i
	var more strings.Builder // of the relay's destination
	batch := r.Batch
	switch {
	case r.original != "":
		o.Part, o.Original, o.Topics = partOriginal, r.original, [2]string{r.topics[0], r.topics[len(r.topics)-1]}
		return startPart(o)
	case r.peer != "":
		dir, err := ownFolder(nil)
		if err != nil {
			return nil, err
		}
		return startProcess(r.peer, dir, r.Peers, "-library",
			r.peer, "-database", r.url, "-broker", r.to.address, "-batch", fmt.Sprint(peerBatch))
	case r.name == Debezium:
		return r.startDebezium()
	case r.Bench == "drain" && r.workers > 1:
		o.Part, o.Groups = partGroup, r.workers
		return startPart(o)
	case r.part != "":
		if r.log {
			o.Slot = r.slot(r.name)
		}
		return startPart(o)
	case r.Bench == "strategies":
		batch = 0
		if r.groups && r.workers > 1 {
			fmt.Fprintf(&more, "    shard_groups: %d\n", r.workers)
		}
	}
	if r.source != "" {
		fmt.Fprintf(&more, "    source: {preset: %s}\n", r.source)
	}
	if r.log {
		catchUp := 0
		if r.name == CatchUp {
			catchUp = 16 << 20
		}
		fmt.Fprintf(&more, "    replication: {slot: %s, catch_up: %d}\n", r.slot(r.name), catchUp)
	}
	return r.startRelay(fmt.Sprintf("bench-%d", i), batch, more.String())
}

// order says what a part is to do on the run's servers.
func (r *run) order(part string) order {
	return order{Part: part, Database: r.url, Broker: r.Broker, Address: r.to.address, Topic: r.topics[0], Fair: r.name == Fair,
		Batch: r.Batch}
}
