// Command many measures one relay that delivers from many databases, most of which are idle: its connections, memory
// and processor for each of these, and how late the others are while one hangs.
//
//	go run ./proof/many
//	go run ./proof/many -databases 200 -busy 5 -rate 50 -for 30s
//	go run ./proof/many -databases 1000 -settle 2m
//	go run ./proof/many -noisy 200000 -broker nats -databases 11 -busy 11
//
// Latency is from the start of an INSERT to the receiver. The first message of an idle database is measured where none
// has come for as long as the others are measured. It fails if a message of a database that doesn't hang is lost. An
// empty database takes 8 MB of disk. With -noisy it measures instead what the busy ones notice of another one that has
// many messages at once, and shares a broker with them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/command"
	"github.com/pgoutbox/outbox/proof/rig"
	"github.com/pgoutbox/outbox/schema"
)

func main() { command.Main("many", many) }

type options struct {
	databases, busy, rate int
	period, settle        time.Duration
	outbox                string

	backlog, rounds, link int
	broker                string
}

func many(ctx context.Context, args []string, out io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("many", flag.ContinueOnError)
	flags.IntVar(&o.databases, "databases", 50, "how many there are")
	flags.IntVar(&o.busy, "busy", 5, "how many of them are written to, at least 2")
	flags.IntVar(&o.rate, "rate", 50, "messages a second that each of these gets")
	flags.DurationVar(&o.period, "for", 20*time.Second, "how long each measurement takes")
	flags.DurationVar(&o.settle, "settle", 20*time.Second, "how long it waits before it measures, until idle databases rest")
	flags.StringVar(&o.outbox, "outbox", "", "the outbox that is measured, a file (default: build it)")
	flags.IntVar(&o.backlog, "noisy", 0, "how many messages the first busy database has at once; 0: another measurement")
	flags.IntVar(&o.rounds, "rounds", 3, "how often that is measured")
	flags.IntVar(&o.link, "link", 0, "MiB a second that the way to nats has room for; 0: as many as can be")
	flags.StringVar(&o.broker, "broker", "http", "what all deliver to: http, which no databases share a client of, or nats")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.busy < 2 || o.databases < o.busy || o.backlog == 0 && o.databases == o.busy ||
		o.broker != "http" && o.broker != "nats" || o.rate < 1 || o.rate > 1000 || o.period < time.Second {
		return errors.New("nothing to measure: see -h")
	}
	b, err := open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()

	if o.backlog > 0 {
		return b.noisy(ctx, out)
	}
	few, err := b.measure(ctx, o.busy, "")
	if err != nil {
		return err
	}
	all, err := b.measure(ctx, o.databases, "")
	if err != nil {
		return err
	}
	frozen, err := b.measure(ctx, o.databases, b.names[0])
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s, PostgreSQL %s, %d busy databases with %d messages a second each\n\n",
		rig.ThisMachine(), b.pg.Version(), o.busy, o.rate)
	fmt.Fprintln(out, "| databases | connections | memory MiB | relay cores | PostgreSQL cores | p50 ms | p99 ms | messages |")
	fmt.Fprintln(out, "|---|--:|--:|--:|--:|--:|--:|--:|")
	for _, m := range []*measured{few, all, frozen} {
		fmt.Fprintf(out, "| %s | %d | %.1f | %.3f | %.3f | %.2f | %.2f | %d |\n",
			m.name, m.connections, m.memory, m.relay, m.server, m.late.P50, m.late.P99, m.late.Count)
	}
	idle := float64(o.databases - o.busy)
	fmt.Fprintf(out, "\neach idle one: %.1f connections, %.0f kB, %.2f ms of the relay's processor a second, "+
		"%.2f ms of PostgreSQL's\n", float64(all.connections-few.connections)/idle, 1024*(all.memory-few.memory)/idle,
		1000*(all.relay-few.relay)/idle, 1000*(all.server-few.server)/idle)
	fmt.Fprintf(out, "the first message of an idle one: p50 %.2f ms, the slowest %.2f ms, of %d\n",
		all.first.P50, all.first.P99, all.first.Count)
	return nil
}

// bed is what is measured on.
type bed struct {
	options
	dir, binary string
	pg          *servers.Postgres
	names       []string // of databases
	receiver    *httptest.Server
	nats        *servers.NATS // nil: the destinations are webhooks
	subscriber  *nats.Conn
	slow        net.Listener // the way to it; nil: it is near

	meter rig.Meter[string] // by payload
}

func open(ctx context.Context, o options) (b *bed, err error) {
	b = &bed{options: o}
	b.receiver = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err == nil {
			b.meter.Arrived(string(body))
		}
	}))
	if b.dir, err = os.MkdirTemp("", "outbox-many-"); err == nil {
		if b.binary = o.outbox; b.binary == "" {
			b.binary, err = rig.Build(ctx, b.dir)
		}
	}
	if err == nil {
		b.pg, err = servers.StartPostgres(ctx, servers.PostgresConfig{Settings: map[string]string{
			"max_connections": fmt.Sprint(100 + 8*o.databases)}})
	}
	if err == nil && o.broker == "nats" {
		err = b.listen(ctx)
	}
	for range o.databases {
		if err == nil {
			err = b.database(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// database makes one, a copy of the first.
func (b *bed) database(ctx context.Context) error {
	if len(b.names) > 0 {
		name, err := b.pg.CopyDatabase(ctx, b.names[0])
		b.names = append(b.names, name)
		return err
	}
	name, err := b.pg.CreateDatabase(ctx)
	if err != nil {
		return err
	}
	b.names = append(b.names, name)
	conn, err := pgx.Connect(ctx, b.pg.URL(name))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = schema.Up(ctx, conn, schema.UpConfig{})
	return err
}

func (b *bed) close() error {
	b.receiver.CloseClientConnections()
	b.receiver.Close()
	var err error
	if b.pg != nil {
		err = b.pg.Close()
	}
	if b.slow != nil {
		err = errors.Join(err, b.slow.Close())
	}
	if b.subscriber != nil {
		b.subscriber.Close()
	}
	if b.nats != nil {
		err = errors.Join(err, b.nats.Close())
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

// measured is one measurement.
type measured struct {
	name          string
	connections   int
	memory        float64      // of the relay, MiB
	relay, server float64      // cores
	late          rig.Lateness // of the databases that don't hang
	first         rig.Lateness // of messages to idle databases
}

// measure has a relay deliver from the first n databases, one of which may hang.
func (b *bed) measure(ctx context.Context, n int, hangs string) (m *measured, err error) {
	m = &measured{name: fmt.Sprint(n)}
	relay, err := b.start(ctx, n)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, relay.Stop(time.Minute)) }()
	watcher, err := pgx.Connect(ctx, b.pg.URL("postgres"))
	if err != nil {
		return nil, err
	}
	defer watcher.Close(context.WithoutCancel(ctx))
	if err := b.work(ctx, hangs, b.settle, m); err != nil { // until all have begun and rest, and caches are warm
		return nil, err
	}
	if hangs != "" {
		m.name += ", one of which hangs"
		thaw, err := freeze(ctx, watcher, hangs)
		defer thaw()
		if err != nil {
			return nil, err
		}
	}
	cpu, server, began := rig.CPU(relay.PID()), rig.DatabaseCPU(watcher.PgConn().PID()), time.Now()
	if err := b.work(ctx, hangs, b.period, m); err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	m.relay, m.server = (rig.CPU(relay.PID())-cpu)/took, (rig.DatabaseCPU(watcher.PgConn().PID())-server)/took
	m.memory = rig.RSS(relay.PID())
	err = watcher.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'outbox %'").Scan(&m.connections)
	if err == nil && n > b.busy && hangs == "" {
		m.first, err = b.wakeUp(ctx, b.names[b.busy:n])
	}
	return m, err
}

// wakeUp writes one message to each of some idle databases, one after the other.
func (b *bed) wakeUp(ctx context.Context, idle []string) (late rig.Lateness, err error) {
	for _, name := range idle[:min(len(idle), 100)] {
		conn, err := pgx.Connect(ctx, b.pg.URL(name))
		if err != nil {
			return late, err
		}
		err = b.insert(ctx, conn, name)
		if err == nil {
			err = b.arrival(ctx)
		}
		_ = conn.Close(context.WithoutCancel(ctx))
		if err != nil {
			return late, err
		}
	}
	return b.meter.Read(), nil
}

// arrival waits until everything has come.
func (b *bed) arrival(ctx context.Context) error {
	return rig.Until(ctx, time.Minute, 5*time.Millisecond, "everything has come", func() (bool, error) {
		away, _ := b.meter.Away()
		return away == 0, nil
	})
}

func (b *bed) insert(ctx context.Context, conn *pgx.Conn, database string) error {
	text := fmt.Sprint(database, " ", time.Now().UnixNano())
	const insert = "INSERT INTO outbox.messages (topic, key, payload) VALUES ('t', 'k', convert_to($1, 'UTF8'))"
	if _, err := conn.Prepare(ctx, insert, insert); err != nil {
		return err
	}
	b.meter.Wrote(text)
	_, err := conn.Exec(ctx, insert, text)
	return err
}

func (b *bed) start(ctx context.Context, n int) (*rig.Relay, error) {
	address, err := rig.FreeAddress()
	if err != nil {
		return nil, err
	}
	var config strings.Builder
	fmt.Fprintf(&config, `name: many
http: {listen: %q}
destinations:
  - name: web
    broker: %s
databases:
`, address, b.section())
	for i, name := range b.names[:n] {
		fmt.Fprintf(&config, "  - {name: db%d, database: {url: %q}}\n", i, b.pg.URL(name))
	}
	relay, err := rig.StartRelay(b.binary, b.folder(), "many", config.String())
	if err != nil {
		return nil, err
	}
	return relay, relay.Up(ctx, time.Minute+time.Duration(n)*100*time.Millisecond)
}

// freeze stops the server's processes for a database, as a machine does that swaps. thaw lets them go on.
func freeze(ctx context.Context, conn *pgx.Conn, database string) (thaw func(), err error) {
	rows, err := conn.Query(ctx, "SELECT pid FROM pg_stat_activity WHERE datname = $1", database)
	if err != nil {
		return func() {}, err
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	for _, pid := range pids {
		err = errors.Join(err, syscall.Kill(pid, syscall.SIGSTOP))
	}
	return func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT) // one that has gone needs none
		}
	}, err
}

// work writes to the busy databases for a time, but not to the one that hangs, waits until everything has come, and
// notes how long that took.
func (b *bed) work(ctx context.Context, hangs string, period time.Duration, m *measured) error {
	var writers sync.WaitGroup
	errs := make([]error, b.busy)
	for i, name := range b.names[:b.busy] {
		if name == hangs {
			continue
		}
		writers.Go(func() { errs[i] = b.write(ctx, name, period) })
	}
	writers.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	err := b.arrival(ctx)
	m.late = b.meter.Read()
	return err
}

func (b *bed) write(ctx context.Context, database string, period time.Duration) error {
	conn, err := pgx.Connect(ctx, b.pg.URL(database))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	tick := time.NewTicker(time.Second / time.Duration(b.rate))
	defer tick.Stop()
	for end := time.Now().Add(period); time.Now().Before(end) && ctx.Err() == nil; <-tick.C {
		if err := b.insert(ctx, conn, database); err != nil {
			return err
		}
	}
	return ctx.Err()
}
