package bench

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox/cmd/internal/bench/originals"
)

// StrategiesConfig says what to compare. The zero value means the stated defaults. The broker is Kafka.
type StrategiesConfig struct {
	Common
	Messages int   // of the backlog. Default 1,000,000
	Bytes    int   // payload of each. Default 256
	Keys     int   // default 10,000
	Workers  []int // how many of each contender work at once; each is a run. Default 1 and 2
	Batch    int   // rows of the originals' batches. Default 100

	Rate int           // messages per second of the phase that measures latency. Default 100
	For  time.Duration // how long that takes; negative leaves it out. Default 5 s
	Held time.Duration // how long a transaction is then held open elsewhere, under the same load. Default 10 s
}

// strategy is a contender of a comparison.
type strategy struct {
	name   string
	layout string
	slow   int // the most messages it gets: it takes too long for more; 0 is no bound

	original string // of the package originals
	source   string // a relay's source: the preset's name
	log      bool   // a relay that reads the log
	single   bool   // only one works at a time; more are not run
	groups   bool   // workers share by shard groups

	order func(workers int) bool // whether it promises the order of keys
}

func always(int) bool        { return true }
func never(int) bool         { return false }
func alone(workers int) bool { return workers == 1 }

// strategies are all contenders, floor first.
func strategies() []strategy {
	return []strategy{
		{name: Floor, layout: "default", single: true, order: never},
		{name: "snapshot", layout: "default", groups: true, order: always},
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
	}
}

// StrategyNames are the contenders of a comparison.
func StrategyNames() []string {
	var names []string
	for _, s := range strategies() {
		names = append(names, s.name)
	}
	return names
}

func findStrategy(name string) strategy {
	all := strategies()
	return all[slices.IndexFunc(all, func(s strategy) bool { return s.name == name })]
}

func (c *StrategiesConfig) prepare() error {
	faults := c.Common.defaults(StrategyNames()...)
	setDefault(&c.Messages, 1_000_000)
	setDefault(&c.Bytes, 256)
	setDefault(&c.Keys, 10_000)
	setDefault(&c.Batch, 100)
	setDefault(&c.Rate, 100)
	setDefault(&c.For, 5*time.Second)
	setDefault(&c.Held, 10*time.Second)
	if len(c.Workers) == 0 {
		c.Workers = []int{1, 2}
	}
	need := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	need(c.Broker == "kafka", "broker %q: the comparison publishes to Kafka, as most of the articles do", c.Broker)
	need(c.Binary != "", "the path of the binary is missing")
	need(c.Messages >= 1, "%d messages: want at least one", c.Messages)
	need(c.Bytes >= minJSON && c.Bytes <= maxBytes, "%d bytes: want %d to %d", c.Bytes, minJSON, maxBytes)
	need(c.Keys > backlogWriters && c.Keys <= maxKeys, "%d keys: want more than %d, to %d", c.Keys, backlogWriters, maxKeys)
	need(c.Batch >= 1, "a batch of %d: want a positive number", c.Batch)
	need(c.Rate >= 1 && c.Rate <= 10_000, "a rate of %d: want 1 to 10,000", c.Rate)
	need(c.Held >= 0, "transactions held open for %v: it can't be negative", c.Held)
	for _, n := range c.Workers {
		need(n >= 1 && n <= 16, "%d workers: want 1 to 16", n)
	}
	return errors.Join(faults...)
}

// Validate reports everything that is wrong with c at once.
func (c StrategiesConfig) Validate() error { return c.prepare() }

// Strategies compares every strategy, and the algorithms of articles as they are written there. With an
// error it returns the results until then.
func Strategies(ctx context.Context, cfg StrategiesConfig) ([]Result, error) {
	if err := cfg.prepare(); err != nil {
		return nil, err
	}
	b, err := openBed(ctx, &cfg.Common, true, false)
	if err != nil {
		return nil, err
	}
	defer b.close()
	kafka, is := b.to.(*kafkaTarget)
	if !is {
		return nil, fmt.Errorf("the broker is no Kafka but a %T", b.to)
	}
	to := newTopics(kafka)
	defer to.leave()
	var results []Result
	for round := range cfg.Rounds {
		begins := len(results)
		for _, workers := range cfg.Workers {
			first := len(results)
			for _, name := range cfg.order(round) {
				s := findStrategy(name)
				if s.single && workers > 1 {
					continue
				}
				run := strategyRun{StrategiesConfig: &cfg, strategy: s, bed: b, to: to, workers: workers, layout: layouts(to.names)[s.layout]}
				r, err := run.once(ctx)
				if err != nil {
					compareSnapshot(results[first:])
					compare(results[begins:], Floor)
					return results, fmt.Errorf("%s, %d workers, round %d: %w", name, workers, round+1, err)
				}
				r.Round = round + 1
				cfg.say("round %d of %d, %d workers: %s, %.0f messages/s", r.Round, cfg.Rounds, workers, name, r.Rate)
				results = append(results, r)
			}
			compareSnapshot(results[first:])
		}
		compare(results[begins:], Floor) // which runs with one worker only
	}
	return results, nil
}

// compareSnapshot fills in the ratios to the default strategy.
func compareSnapshot(round []Result) {
	i := slices.IndexFunc(round, func(r Result) bool { return r.Contender == "snapshot" })
	if i < 0 || round[i].Rate == 0 {
		return
	}
	base := round[i].Rate
	for i := range round {
		round[i].RatioToSnapshot = round[i].Rate / base
	}
}

// strategyRun is a contender on a database of its own.
type strategyRun struct {
	*StrategiesConfig
	strategy
	*bed
	to      *topics
	workers int
	layout  layout
	team    team
}

func (s *strategyRun) once(ctx context.Context) (Result, error) {
	messages := s.Messages
	if s.slow > 0 {
		messages = min(messages, s.slow)
	}
	r := Result{Bench: "strategies", Contender: s.strategy.name, Broker: "kafka", Messages: messages, Bytes: s.Bytes, Keys: s.Keys, Relays: s.workers,
		Settings: map[string]string{"rows_per_transaction": "3 to 17", "originals_batch": strconv.Itoa(s.Batch), "latency_rate": strconv.Itoa(s.Rate)}}
	s.describe(&r)
	if err := s.to.fresh(ctx); err != nil {
		return r, err
	}
	if err := s.freshDatabase(ctx); err != nil {
		return r, err
	}
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return r, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if s.layout.ddl != "" {
		if _, err := conn.Exec(ctx, s.layout.ddl); err != nil {
			return r, fmt.Errorf("create its table: %w", err)
		}
	}
	if s.log {
		if err := s.prepareLog(ctx); err != nil {
			return r, err
		}
	}
	load, err := s.fillTable(ctx, conn, messages)
	if err != nil {
		return r, fmt.Errorf("load its table: %w", err)
	}
	if s.log {
		if err := s.standBefore(ctx, conn, Replication); err != nil {
			return r, err
		}
	}
	before, err := s.look(ctx, conn)
	if err != nil {
		return r, err
	}
	defer func() { s.team.stop() }()
	if s.team, err = s.launch(); err != nil {
		return r, err
	}
	began, err := s.begun(ctx)
	if err != nil {
		return r, err
	}
	took, err := s.drained(ctx, conn, began, messages)
	if err != nil {
		return r, err
	}
	after, err := s.look(ctx, conn)
	if err != nil {
		return r, err
	}
	r.Seconds, r.Rate = took.Seconds(), float64(messages)/took.Seconds()
	r.DatabaseCPU, r.WALMB = after.cpu-before.cpu, float64(after.wal-before.wal)/(1<<20)
	for _, p := range s.team {
		r.RelayCPU += p.cpuNow()
	}
	if err := s.vacuum(ctx, &r); err != nil {
		return r, err
	}
	// Who can't keep up with the load would show how long the queue is.
	if s.For > 0 && s.workers == 1 && s.strategy.name != Floor && r.Rate > 2*float64(s.Rate) {
		if err := s.live(ctx, load, &r); err != nil {
			return r, fmt.Errorf("under load: %w", err)
		}
	}
	r.RSSMB = s.team.peakRSS()
	s.team.stop()
	checker := load.checker()
	at := checker.Destination("default")
	if err := s.to.readAll(ctx, func(payload []byte) { _, _ = at.Payload(payload) }); err != nil { // what doesn't decode is counted
		return r, fmt.Errorf("read back what arrived: %w", err)
	}
	r.checked(checker.Report())
	return r, nil
}

// sight is what the database has spent until now.
type sight struct {
	cpu float64
	wal int64
}

func (s *strategyRun) look(ctx context.Context, conn *pgx.Conn) (at sight, err error) {
	at.cpu = databaseCPU(conn.PgConn().PID())
	return at, conn.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint").Scan(&at.wal)
}

// vacuum measures what it takes to clean up behind the contender, and how many dead rows there were.
// Statistics would not say: a backend that goes on tells them late.
func (s *strategyRun) vacuum(ctx context.Context, r *Result) error {
	cfg, err := pgx.ParseConfig(s.url)
	if err != nil {
		return err
	}
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		for _, kind := range []*regexp.Regexp{removedRows, removedItems} { // pruning may have left items of rows
			if m := kind.FindStringSubmatch(n.Message); m != nil {
				rows, _ := strconv.ParseInt(m[1], 10, 64) // it is digits
				r.DeadRows = max(r.DeadRows, rows)
			}
		}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	began := time.Now()
	_, err = conn.Exec(ctx, "VACUUM (VERBOSE, PROCESS_TOAST false) "+s.layout.table.Sanitize())
	r.VacuumMS = milliseconds(time.Since(began))
	return err
}

// What VACUUM VERBOSE says about a table, from PostgreSQL 15 on.
var (
	removedRows  = regexp.MustCompile(`tuples: (\d+) removed`)
	removedItems = regexp.MustCompile(`had (\d+) dead item identifiers`)
)

// launch starts the contender's processes, and returns those that it has started.
func (s *strategyRun) launch() (team, error) {
	var t team
	for i := range s.workers {
		p, err := s.launchOne(i)
		if err != nil {
			return t, err
		}
		t = append(t, p)
	}
	return t, nil
}

func (s *strategyRun) launchOne(i int) (*process, error) {
	o := order{Database: s.url, Broker: "kafka", Address: s.to.address(), Topic: s.to.names[0], Batch: s.Batch, Group: i}
	switch {
	case s.original != "":
		o.Part, o.Original, o.Topics = partOriginal, s.original, s.to.names
		return startPart(s.common.Binary, o)
	case s.strategy.name == Floor:
		o.Part = partCopy
		return startPart(s.common.Binary, o)
	}
	var more strings.Builder
	if s.source != "" {
		fmt.Fprintf(&more, "    source: {preset: %s}\n", s.source)
	}
	if s.log {
		fmt.Fprintf(&more, "    replication: {slot: %s}\n", s.slot(Replication))
	}
	if s.groups && s.workers > 1 {
		fmt.Fprintf(&more, "    shard_groups: %d\n", s.workers)
	}
	return startRelayNamed(s.bed, fmt.Sprintf("bench-%d", i), 0, more.String())
}

// begun waits until one of the contender's processes works: of some contenders, others stand by.
func (s *strategyRun) begun(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("nothing has begun for 30 s"))
	defer cancel()
	for {
		for _, p := range s.team {
			select {
			case at := <-p.ready:
				return at, nil
			default:
			}
		}
		if err := s.team.ended(); err != nil {
			return time.Time{}, err
		}
		if pause(ctx, time.Millisecond) != nil {
			return time.Time{}, s.team[0].failure(context.Cause(ctx))
		}
	}
}

// drained waits until everything has been delivered, and returns when the last message came.
func (s *strategyRun) drained(ctx context.Context, conn *pgx.Conn, began time.Time, messages int) (time.Duration, error) {
	last, since := 0, time.Now()
	end := began
	for {
		n, err := s.to.count(ctx)
		if err != nil {
			return 0, err
		}
		now := time.Now()
		if n > last {
			last, since, end = n, now, now
		}
		if s.layout.left == "" && n >= messages {
			return end.Sub(began), nil
		}
		if s.layout.left != "" && now.Sub(since) > 200*time.Millisecond {
			var left bool
			if err := conn.QueryRow(ctx, s.layout.left).Scan(&left); err != nil {
				return 0, err
			}
			if !left {
				return end.Sub(began), nil
			}
			if err := pause(ctx, 200*time.Millisecond); err != nil {
				return 0, err
			}
		}
		if err := s.team.ended(); err != nil {
			return 0, fmt.Errorf("after %d messages: %w", n, err)
		}
		if now.Sub(since) > stalled {
			return 0, s.team[0].failure(fmt.Errorf("nothing has come for %v after %d of %d messages", stalled, n, messages))
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
}
