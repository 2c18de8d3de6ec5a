package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// StrategiesConfig says what to compare. The zero value means the stated defaults. The broker is Kafka.
type StrategiesConfig struct {
	Common
	Messages int   // of the backlog. Default 1,000,000
	Bytes    int   // payload of each. Default 256
	Keys     int   // default 10,000
	Workers  []int // how many of each contender work at once; each is a run. Default 1 and 2
	Batch    int   // rows of the originals' batches. Default 100, and 1,000 with the workload Ours

	// Workload is Seed, the default, or Ours: see [Workloads].
	Workload string
	Peers    string // the program of other people's libraries, which take part if it is given
	Debezium string // the folder of Debezium Server's distribution, which takes part if it is given

	Rate int           // messages per second of the phase that measures latency. Default 100
	For  time.Duration // how long that takes; negative leaves it out. Default 5 s
	Held time.Duration // how long a transaction is then held open elsewhere, under the same load. Default 10 s
}

func (c *StrategiesConfig) prepare() error {
	faults := c.Common.choose(c.contenders())
	setDefault(&c.Workload, Seed)
	work, found := Workloads()[c.Workload]
	setDefault(&c.Messages, 1_000_000)
	setDefault(&c.Bytes, 256)
	setDefault(&c.Keys, 10_000)
	setDefault(&c.Batch, work.batch)
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
	need(found, "workload %q: want %s or %s", c.Workload, Seed, Ours)
	need(c.Messages >= 1, "%d messages: want at least one", c.Messages)
	need(c.Bytes >= minJSON && c.Bytes <= maxBytes, "%d bytes: want %d to %d", c.Bytes, minJSON, maxBytes)
	need(c.Keys > backlogWriters && c.Keys <= maxKeys, "%d keys: want more than %d, to %d", c.Keys, backlogWriters, maxKeys)
	need(c.Batch >= 1 || !found, "a batch of %d: want a positive number", c.Batch)
	need(c.Rate >= 1 && c.Rate <= 10_000, "a rate of %d: want 1 to 10,000", c.Rate)
	need(c.Held >= 0, "transactions held open for %v: it can't be negative", c.Held)
	for _, name := range c.Contenders {
		i := slices.IndexFunc(strategies(), func(s strategy) bool { return s.name == name })
		need(i < 0 || strategies()[i].peer == "" || c.Peers != "", "contender %q: --peers names the program that it is in", name)
		need(name != Debezium || c.Debezium != "", "contender %q: --debezium names the folder of its distribution", name)
	}
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
	work := Workloads()[cfg.Workload]
	to := newTopics(kafka, work)
	defer to.leave()
	var results []Result
	for round := range cfg.Rounds {
		begins := len(results)
		for _, workers := range cfg.Workers {
			for _, name := range cfg.order(round) {
				s := findStrategy(name)
				if s.single && workers > 1 {
					continue
				}
				run := strategyRun{StrategiesConfig: &cfg, strategy: s, bed: b, to: to, workers: workers, work: work, layout: layouts(to.names, work.partitions)[s.layout]}
				r, err := run.once(ctx)
				if err != nil {
					compare(results[begins:])
					return results, fmt.Errorf("%s, %d workers, round %d: %w", name, workers, round+1, err)
				}
				r.Round = round + 1
				cfg.say("round %d of %d, %d workers: %s, %.0f messages/s", r.Round, cfg.Rounds, workers, name, r.Rate)
				results = append(results, r)
			}
		}
		compare(results[begins:])
	}
	return results, nil
}

// strategyRun is a contender on a database of its own.
type strategyRun struct {
	*StrategiesConfig
	strategy
	*bed
	to      *topics
	work    Workload
	workers int
	layout  layout
	team    team
}

func (s *strategyRun) once(ctx context.Context) (Result, error) {
	messages := s.Messages
	if s.slow > 0 {
		messages = min(messages, s.slow)
	}
	r := Result{Bench: "strategies", Contender: s.strategy.name, Broker: "kafka", Messages: messages, Bytes: s.Bytes, Keys: s.Keys, Relays: s.workers, Workload: s.Workload,
		Settings: map[string]string{"rows_per_transaction": s.work.transactions(), "originals_batch": strconv.Itoa(s.Batch), "latency_rate": strconv.Itoa(s.Rate),
			"topics": strconv.Itoa(s.work.topics), "partitions": strconv.Itoa(s.work.partitions)}}
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
	if s.strategy.name == Debezium {
		if err := s.prepareDebezium(ctx, conn); err != nil {
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
	launched := time.Now()
	if s.team, err = s.launch(); err != nil {
		return r, err
	}
	began, err := s.begun(ctx, conn)
	if err != nil {
		return r, err
	}
	r.StartMS = milliseconds(began.Sub(launched))
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
