// Command gap measures for how long a receiver hears nothing when the relay that owns the destination dies, freezes or
// ends, and another one stands by.
//
//	go run ./proof/gap
//	go run ./proof/gap -faults kill,stop,freeze,session -rounds 20 -rate 500
//	go run ./proof/gap -outbox bin/outbox-before
//
// The gap is the longest silence of the receiver around a fault. It fails if a message is lost, a phantom or out of
// order.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/command"
	"github.com/pgoutbox/outbox/proof/rig"
)

func main() { command.Main("gap", gap) }

type options struct {
	outbox, faults, strategy string
	rounds, rate             int
}

// faults are what happens to the relay that owns the destination.
var faults = map[string]func(b *bed, owner *rig.Relay) error{
	"kill":   func(_ *bed, owner *rig.Relay) error { return owner.Kill() },
	"stop":   func(_ *bed, owner *rig.Relay) error { return owner.Signal(syscall.SIGTERM) },
	"freeze": func(_ *bed, owner *rig.Relay) error { return owner.Freeze() },
	"session": func(b *bed, owner *rig.Relay) error {
		_, err := b.conn.Exec(context.Background(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE application_name = 'outbox relay ' || $1::text AND datname = current_database()`, owner.Name)
		return err
	},
}

func gap(ctx context.Context, args []string, out io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("gap", flag.ContinueOnError)
	flags.StringVar(&o.outbox, "outbox", "", "the program to measure; empty: it is built")
	flags.StringVar(&o.faults, "faults", "kill", "what happens to the owner: kill, stop, freeze, session (the database's sessions end)")
	flags.StringVar(&o.strategy, "strategy", "snapshot", "how the relays read: snapshot, replication")
	flags.IntVar(&o.rounds, "rounds", 100, "how often each happens")
	flags.IntVar(&o.rate, "rate", 500, "messages a second")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.strategy != "snapshot" && o.strategy != "replication" {
		return fmt.Errorf("unknown strategy %q", o.strategy)
	}
	if o.rounds < 1 || o.rate < 1 || o.rate > 1000 {
		return errors.New("nothing to measure: see -h")
	}
	fmt.Fprintf(out, "%s, %d messages a second, %s\n\n", rig.ThisMachine(), o.rate, o.strategy)
	fmt.Fprintln(out, "| the owner | rounds | p50 ms | p90 ms | p99 ms | max ms | lost/phantom/repeated/inverted |")
	fmt.Fprintln(out, "|---|--:|--:|--:|--:|--:|---|")
	for name := range strings.SplitSeq(o.faults, ",") {
		fault, ok := faults[name]
		if !ok {
			return fmt.Errorf("unknown fault %q", name)
		}
		if err := measure(ctx, o, name, fault, out); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// bed is one database with its receiver and two relays.
type bed struct {
	options
	dir      string
	pg       *servers.Postgres
	url      string
	conn     *pgx.Conn
	receiver *httptest.Server
	relays   [2]*rig.Relay
	checker  *check.Checker
	meter    rig.Meter[check.ID]
}

func measure(ctx context.Context, o options, name string, fault func(*bed, *rig.Relay) error, out io.Writer) (err error) {
	b := &bed{options: o}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	var writer sync.WaitGroup
	var total uint64
	load := rig.Steady{URL: b.url, Rate: b.rate, Keys: 100}
	writer.Go(func() {
		var err error
		if total, err = load.Write(ctx, stop, b.checker, &b.meter); err != nil {
			cancel(err)
		}
	})
	var gaps []float64
	for range o.rounds {
		silence, err := b.round(ctx, fault)
		if err != nil {
			cancel(err)
			break
		}
		gaps = append(gaps, silence.Seconds()*1000)
	}
	close(stop)
	writer.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	cancel(nil)
	err = rig.Until(context.WithoutCancel(ctx), time.Minute, 10*time.Millisecond, "everything has come", func() (bool, error) {
		away, _ := b.meter.Away()
		return away == 0, nil
	})
	if err != nil {
		return err
	}
	slices.Sort(gaps)
	at := func(percent int) float64 { return gaps[min(len(gaps)*percent/100, len(gaps)-1)] }
	r := b.checker.Report()
	fmt.Fprintf(out, "| %s | %d | %.0f | %.0f | %.0f | %.0f | %d/%d/%d/%d of %d |\n",
		name, len(gaps), at(50), at(90), at(99), at(100), r.Lost, r.Phantom, r.Duplicated, r.Inverted, total)
	if r.Lost+r.Phantom+r.Inverted > 0 {
		return fmt.Errorf("a promise is broken: %+v", r.Examples)
	}
	return nil
}

// round does something to the owner, and returns the silence that follows. Both relays run when it begins.
func (b *bed) round(ctx context.Context, fault func(*bed, *rig.Relay) error) (time.Duration, error) {
	owner, err := b.settled(ctx)
	if err != nil {
		return 0, err
	}
	b.meter.Read()
	if err := fault(b, owner); err != nil {
		return 0, err
	}
	began := time.Now()
	err = rig.Until(ctx, time.Minute, 20*time.Millisecond, "messages come again", func() (bool, error) {
		away, last := b.meter.Away()
		return time.Since(began) > time.Second && time.Since(last) < 100*time.Millisecond && away < b.rate/5, nil
	})
	if err != nil {
		return 0, err
	}
	silence := b.meter.Read().Silence
	if err := owner.Thaw(); err != nil { // a zombie, if it was frozen
		return 0, err
	}
	if err := owner.Kill(); err != nil {
		return 0, err
	}
	if err := owner.Start(); err != nil {
		return 0, err
	}
	return silence, owner.Up(ctx, time.Minute)
}

// settled waits until one relay owns the destination and delivers, and the other one has stood by for a while.
func (b *bed) settled(ctx context.Context) (owner *rig.Relay, err error) {
	var name string
	const sql = "SELECT coalesce(max(owner), '') FROM outbox.cursors WHERE lease_until > clock_timestamp()"
	err = rig.Until(ctx, time.Minute, 20*time.Millisecond, "a relay delivers", func() (bool, error) {
		away, last := b.meter.Away()
		err := b.conn.QueryRow(ctx, sql).Scan(&name)
		return name != "" && away < b.rate/5 && time.Since(last) < 100*time.Millisecond, err
	})
	if err != nil {
		return nil, err
	}
	for _, r := range b.relays {
		if r.Name == name {
			owner = r
		}
	}
	if owner == nil {
		return nil, fmt.Errorf("%q owns the destination", name)
	}
	return owner, rig.Pause(ctx, 2*time.Second)
}

func (b *bed) open(ctx context.Context) (err error) {
	b.checker = check.New(check.Config{Destinations: []check.DestinationConfig{{Name: "web"}}})
	to := b.checker.Destination("web")
	b.receiver = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if id, err := to.Payload(body); err == nil { // another one is in the report
			b.meter.Arrived(id)
		}
	}))
	if b.dir, err = os.MkdirTemp("", "outbox-gap-"); err != nil {
		return err
	}
	if b.outbox == "" {
		if b.outbox, err = rig.Build(ctx, b.dir); err != nil {
			return err
		}
	}
	if b.pg, err = servers.StartPostgres(ctx, servers.PostgresConfig{Settings: map[string]string{"wal_level": "logical"}}); err != nil {
		return err
	}
	name, err := b.pg.CreateDatabase(ctx)
	if err != nil {
		return err
	}
	b.url = b.pg.URL(name)
	migrate := exec.CommandContext(ctx, b.outbox, "migrate", "up") // another program has another schema
	migrate.Env = append(os.Environ(), "OUTBOX_DATABASE_URL="+b.url)
	if text, err := migrate.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	if b.conn, err = pgx.Connect(ctx, b.url); err != nil {
		return err
	}
	for i := range b.relays {
		if err := b.start(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (b *bed) start(ctx context.Context, i int) (err error) {
	name := fmt.Sprint("relay-", i+1)
	config := fmt.Sprintf(`name: %s
database: {url: %q}
http: {listen: ""}
destinations:
  - name: web
    broker: {http: {url: %q, allow_networks: [127.0.0.0/8]}}
`, name, b.url, b.receiver.URL)
	if b.strategy == "replication" {
		config += "    replication: {}\n"
	}
	if b.relays[i], err = rig.StartRelay(b.outbox, b.dir, name, config); err != nil {
		return err
	}
	return b.relays[i].Up(ctx, time.Minute)
}

func (b *bed) close() error {
	var errs []error
	for _, r := range b.relays {
		if r != nil {
			errs = append(errs, r.Stop(time.Minute))
		}
	}
	b.receiver.CloseClientConnections()
	b.receiver.Close()
	if b.conn != nil {
		errs = append(errs, b.conn.Close(context.Background()))
	}
	if b.pg != nil {
		errs = append(errs, b.pg.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}
