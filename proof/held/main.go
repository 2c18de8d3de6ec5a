// Command held has a relay hold messages of many keys, and measures what the other keys notice: how late they are
// beside the held ones and while these are delivered, the relay's memory, and how long both take. The relay is killed
// (-9) once while all are held, and once while they are delivered.
//
//	go run ./proof/held
//	go run ./proof/held -held 0,1000,20000,1000000 -kinds delayed,missing,paused,keyless
//
// It fails if a message is lost, a phantom or out of order.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/child"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/command"
	"github.com/pgoutbox/outbox/proof/rig"
	"github.com/pgoutbox/outbox/schema"
)

func main() { command.Main("held", held) }

const (
	destination = "d"
	others      = 1000 // keys that aren't held
)

type options struct {
	held, kinds string
	rate        int
	period      time.Duration
}

func held(ctx context.Context, args []string, out io.Writer) (err error) {
	if len(args) == 3 && args[0] == "relay" {
		return relayProcess(ctx, args[1], args[2])
	}
	var o options
	flags := flag.NewFlagSet("held", flag.ContinueOnError)
	flags.StringVar(&o.held, "held", "0,1000,20000", "how many messages are held, each with a key of its own")
	flags.StringVar(&o.kinds, "kinds", "delayed,missing,paused,keyless", "why: deliver_at, a missing topic, a paused one; "+
		"keyless are delayed and have no key")
	flags.IntVar(&o.rate, "rate", 500, "messages a second of other keys")
	flags.DurationVar(&o.period, "for", 20*time.Second, "how long the other keys are measured beside the held ones")
	if err := flags.Parse(args); err != nil {
		return err
	}
	pg, err := servers.StartPostgres(ctx, servers.PostgresConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.Close()) }()
	fmt.Fprintf(out, "%s, PostgreSQL %s, %d messages a second of %d other keys\n\n", rig.ThisMachine(), pg.Version(), o.rate, others)
	fmt.Fprintln(out, "| held | why | until held s | p50 ms | p99 ms | MiB | silence after kill -9 s | "+
		"until all are delivered s | p50 ms meanwhile | p99 ms meanwhile | MiB | lost/phantom/repeated/inverted |")
	fmt.Fprintln(out, "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|")
	for _, text := range strings.Split(o.held, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		for _, kind := range strings.Split(o.kinds, ",") {
			if err := measure(ctx, pg, o, kind, n, out); err != nil {
				return fmt.Errorf("%d %s: %w", n, kind, err)
			}
			if n == 0 {
				break
			}
		}
	}
	return nil
}

// bed is one database, its relay and its broker.
type bed struct {
	options
	dir     string
	conn    *pgx.Conn
	url     string
	broker  net.Listener
	relay   *rig.Child
	killed  time.Time // when the last relay was
	checker *check.Checker
	to      *check.Destination
	opened  atomic.Bool  // the missing topic exists
	arrived atomic.Int64 // messages that were held

	meter rig.Meter[check.ID] // of other keys
}

func measure(ctx context.Context, pg *servers.Postgres, o options, kind string, n int, out io.Writer) (err error) {
	checked := check.Config{Destinations: []check.DestinationConfig{{Name: destination}}}
	b := &bed{options: o, checker: check.New(checked)}
	b.to = b.checker.Destination(destination)
	if err := b.open(ctx, pg); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	release, err := b.write(ctx, kind, n)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.start(); err != nil {
		return err
	}
	stop := make(chan struct{})
	var writer sync.WaitGroup
	var total uint64
	load := rig.Steady{URL: b.url, Rate: b.rate, Keys: others, Prefix: "other "}
	writer.Go(func() {
		var err error
		if total, err = load.Write(ctx, stop, b.checker, &b.meter); err != nil {
			cancel(err)
		}
	})
	if err := b.untilHolds(ctx, "all are held", func(holds int) bool { return holds >= n }); err != nil {
		return err
	}
	toHold := time.Since(began)
	b.say("all are held after %v", toHold)
	if err := rig.Pause(ctx, 5*time.Second); err != nil {
		return err
	}
	b.meter.Read()
	if err := rig.Pause(ctx, o.period); err != nil {
		return err
	}
	beside, memory := b.meter.Read(), rig.RSS(b.relay.PID())
	b.say("others beside them: p50 %.1f ms, p99 %.1f ms; %.0f MiB", beside.P50, beside.P99, memory)
	if err := b.kill(); err != nil {
		return err
	}
	if err := b.until(ctx, "the other keys flow again", b.flows); err != nil {
		return err
	}
	silence := b.meter.Read().Silence
	b.say("killed: silence for %v", silence)
	due, err := release(ctx)
	if err != nil {
		return err
	}
	if err := rig.Pause(ctx, time.Until(due)); err != nil {
		return err
	}
	half := func() (bool, error) { return int(b.arrived.Load()) >= n/2, nil }
	if err := b.until(ctx, "half are delivered", half); err != nil {
		return err
	}
	meanwhile, memoryDue := b.meter.Read(), rig.RSS(b.relay.PID())
	b.say("half are delivered after %v; others: p50 %.1f ms, p99 %.1f ms; %.0f MiB",
		time.Since(due), meanwhile.P50, meanwhile.P99, memoryDue)
	if err := b.kill(); err != nil {
		return err
	}
	if err := b.untilHolds(ctx, "all are delivered", func(holds int) bool { return holds == 0 }); err != nil {
		return err
	}
	drained := time.Since(due)
	close(stop)
	writer.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := b.until(ctx, "the others are delivered", b.allArrived); err != nil {
		return err
	}
	r := b.checker.Report()
	fmt.Fprintf(out, "| %d | %s | %.1f | %.1f | %.1f | %.0f | %.1f | %.1f | %.1f | %.1f | %.0f | %d/%d/%d/%d of %d |\n",
		n, kind, toHold.Seconds(), beside.P50, beside.P99, memory, silence.Seconds(), drained.Seconds(),
		meanwhile.P50, meanwhile.P99, memoryDue, r.Lost, r.Phantom, r.Duplicated, r.Inverted, total+uint64(n))
	if r.Lost+r.Phantom+r.Inverted > 0 {
		return fmt.Errorf("a promise is broken: %+v", r.Examples)
	}
	return nil
}

func (b *bed) open(ctx context.Context, pg *servers.Postgres) error {
	name, err := pg.CreateDatabase(ctx)
	if err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "outbox-held-"); err != nil {
		return err
	}
	b.url = pg.URL(name)
	if b.conn, err = pgx.Connect(ctx, b.url); err != nil {
		return err
	}
	if _, err := schema.Up(ctx, b.conn, schema.UpConfig{}); err != nil {
		return err
	}
	if b.broker, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	go func() {
		for {
			conn, err := b.broker.Accept()
			if err != nil {
				return
			}
			go b.serve(newPeer(conn))
		}
	}()
	return nil
}

func (b *bed) close() error {
	var err error
	if b.relay != nil {
		err = b.relay.Stop(time.Minute)
	}
	return errors.Join(err, b.broker.Close(), b.conn.Close(context.Background()), os.RemoveAll(b.dir))
}

// serve is the broker: it takes a batch as a whole before it answers.
func (b *bed) serve(p *peer) {
	defer p.Close()
	for {
		var q request
		if err := p.in.Decode(&q); err != nil {
			return
		}
		a := make(answer, len(q.Topics))
		for i, payload := range q.Payloads {
			if q.Topics[i] == "missing" && !b.opened.Load() {
				a[i] = 1
				continue
			}
			id, err := b.to.Payload(payload)
			if err != nil {
				continue // it is in the report
			}
			if id.Key >= others {
				b.arrived.Add(1)
				continue
			}
			b.meter.Arrived(id)
		}
		if err := p.out.Encode(a); err != nil {
			return
		}
	}
}

func (b *bed) start() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	b.relay = &rig.Child{Name: "relay", Command: child.Command{
		Path: program, Args: []string{"relay", b.url, b.broker.Addr().String()}, LogFile: filepath.Join(b.dir, "relay.log"),
	}}
	return b.relay.Start()
}

// kill ends the relay with SIGKILL and starts another one.
func (b *bed) kill() error {
	if err := b.relay.Kill(); err != nil {
		return err
	}
	b.killed = time.Now()
	return b.start()
}

// write commits the messages that are to be held, the last numbers of keys first, and returns what ends their waiting.
func (b *bed) write(ctx context.Context, kind string, n int) (release func(context.Context) (time.Time, error), err error) {
	topic, key := "t", "held "
	var at *time.Time
	switch kind {
	case "missing":
		topic = "missing"
		release = func(context.Context) (time.Time, error) { b.opened.Store(true); return time.Now(), nil }
	case "paused":
		topic = "paused"
		const pause = "INSERT INTO outbox.controls (destination, topic, lane, actor) VALUES ($1, $2, '', 'held')"
		if _, err := b.conn.Exec(ctx, pause, destination, topic); err != nil {
			return nil, err
		}
		release = func(ctx context.Context) (time.Time, error) {
			_, err := b.conn.Exec(ctx, "DELETE FROM outbox.controls")
			return time.Now(), err
		}
	case "delayed", "keyless":
		// As long as everything before takes.
		due := time.Now().Add(30*time.Second + 2*b.period + time.Duration(n)*500*time.Microsecond)
		at = &due
		release = func(context.Context) (time.Time, error) { return due, nil }
	default:
		return nil, fmt.Errorf("unknown kind %q", kind)
	}
	i := uint32(0)
	_, err = b.conn.CopyFrom(ctx, pgx.Identifier{"outbox", "messages"}, []string{"topic", "key", "payload", "deliver_at"},
		pgx.CopyFromFunc(func() ([]any, error) {
			if i == uint32(n) {
				return nil, nil
			}
			i++
			b.checker.Committed(others+i, 1)
			k := new(string)
			if *k = key + strconv.Itoa(int(i)); kind == "keyless" {
				k = nil
			}
			return []any{topic, k, check.Encode(nil, others+i, 1, 200), at}, nil
		}))
	return release, err
}

// say tells how far a measurement is, because it may last for long.
func (b *bed) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}

// untilHolds waits until there are as many holds as wanted. To count them takes the server a while, so it isn't asked
// all the time.
func (b *bed) untilHolds(ctx context.Context, what string, wanted func(int) bool) error {
	return b.until(ctx, what, func() (bool, error) {
		var n int
		if err := rig.Pause(ctx, 2*time.Second); err != nil {
			return false, err
		}
		err := b.conn.QueryRow(ctx, "SELECT count(*) FROM outbox.holds").Scan(&n)
		return wanted(n), err
	})
}

// flows reports whether the other keys are delivered again, and nearly all that was written has come. What the relay
// that was killed had sent comes within a moment.
func (b *bed) flows() (bool, error) {
	const moment = 100 * time.Millisecond
	away, last := b.meter.Away()
	return last.After(b.killed.Add(moment)) && time.Since(last) < time.Second && away < b.rate/10, nil
}

func (b *bed) allArrived() (bool, error) {
	away, _ := b.meter.Away()
	return away == 0, nil
}

func (b *bed) until(ctx context.Context, what string, reached func() (bool, error)) error {
	err := rig.Until(ctx, 20*time.Minute, 300*time.Millisecond, what, reached)
	if ctx.Err() != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	return err
}
