package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig"
)

// noisy measures what the busy databases notice while the first one, which has many messages waiting, delivers them as
// fast as it can, and how fast it is beside them and alone.
func (b *bed) noisy(ctx context.Context, out io.Writer) (err error) {
	relay, err := b.start(ctx, b.databases)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, relay.Stop(time.Minute)) }()
	var m measured
	if err := b.work(ctx, b.names[0], b.settle, &m); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s, PostgreSQL %s, %s, %d databases with %d messages a second each, and one with %d at once\n\n",
		rig.ThisMachine(), b.pg.Version(), b.broker, b.busy-1, b.rate, b.backlog)
	fmt.Fprintln(out, "| the one | p50 ms | p99 ms | messages | its messages/s | relay µs for each |")
	fmt.Fprintln(out, "|---|--:|--:|--:|--:|--:|")
	for range b.rounds {
		if err := b.work(ctx, b.names[0], b.period, &m); err != nil {
			return err
		}
		fmt.Fprintf(out, "| has nothing | %.2f | %.2f | %d | | |\n", m.late.P50, m.late.P99, m.late.Count)
		for _, alone := range []bool{false, true} {
			if err := b.drain(ctx, relay, alone, out); err != nil {
				return err
			}
		}
	}
	return nil
}

// drain has the first database deliver what waits there, while the others are written to or alone.
func (b *bed) drain(ctx context.Context, relay *rig.Relay, alone bool, out io.Writer) error {
	conn, err := pgx.Connect(ctx, b.pg.URL(b.names[0]))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	delivered := func() (n int64, err error) {
		err = conn.QueryRow(ctx, "SELECT coalesce(sum(delivered), 0) FROM outbox.cursors").Scan(&n)
		return n, err
	}
	before, err := delivered()
	if err == nil {
		err = b.order(ctx, "pause")
	}
	if err == nil {
		err = rig.Pause(ctx, 2*time.Second) // until the relay obeys
	}
	if err == nil {
		_, err = conn.Exec(ctx, `INSERT INTO outbox.messages (topic, key, payload)
			SELECT 'noise', 'k' || i % 10000, convert_to(repeat('x', 200), 'UTF8') FROM generate_series(1, $1::int) i`, b.backlog)
	}
	if err == nil {
		_, err = conn.Exec(ctx, "CHECKPOINT")
	}
	if err != nil {
		return err
	}
	drained := make(chan error, 1)
	var took time.Duration
	var cpu float64
	work, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		var began time.Time
		var used float64
		drained <- rig.Until(ctx, 5*time.Minute, 20*time.Millisecond, "the one has delivered", func() (bool, error) {
			n, err := delivered()
			if n > before && began.IsZero() {
				began, used = time.Now(), rig.CPU(relay.PID())
			}
			if n < before+int64(b.backlog) {
				return false, err
			}
			took, cpu = time.Since(began), rig.CPU(relay.PID())-used
			return true, err
		})
		stop()
	}()
	if err := b.order(ctx, "resume"); err != nil {
		return err
	}
	name := "delivers alone"
	var m measured
	if !alone {
		name = "delivers beside them"
		if err := b.work(work, b.names[0], time.Hour, &m); err != nil && ctx.Err() == nil && work.Err() == nil {
			return err
		}
		if err := b.arrival(ctx); err != nil {
			return err
		}
		m.late = b.meter.Read()
	}
	if err := <-drained; err != nil {
		return err
	}
	n := float64(b.backlog)
	fmt.Fprintf(out, "| %s | %.2f | %.2f | %d | %.0f | %.2f |\n", name, m.late.P50, m.late.P99, m.late.Count, n/took.Seconds(), 1e6*cpu/n)
	return nil
}

// order pauses the first database's destination, or resumes it.
func (b *bed) order(ctx context.Context, verb string) error {
	text, err := exec.CommandContext(ctx, b.binary, verb, "web", "--reason", "noise", "--yes",
		"--database-url", b.pg.URL(b.names[0])).CombinedOutput()
	if err != nil {
		return fmt.Errorf("outbox %s: %w: %s", verb, err, text)
	}
	return nil
}

// listen makes the broker that the destinations share, and notes what arrives.
func (b *bed) listen(ctx context.Context) error {
	var err error
	if b.nats, err = servers.StartNATS(ctx, servers.NATSConfig{}); err != nil {
		return err
	}
	if b.subscriber, err = nats.Connect(b.nats.URL()); err != nil {
		return err
	}
	js, err := jetstream.New(b.subscriber)
	if err != nil {
		return err
	}
	if _, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "MANY", Subjects: []string{"t", "noise"}, MaxMsgs: 100_000}); err != nil {
		return err
	}
	if b.link > 0 {
		if b.slow, err = throttle(b.nats.Addr(), b.link<<20); err != nil {
			return err
		}
	}
	_, err = b.subscriber.Subscribe("t", func(m *nats.Msg) { b.meter.Arrived(string(m.Data)) })
	return errors.Join(err, b.subscriber.Flush())
}

// section is the destinations' broker.
func (b *bed) section() string {
	if b.broker == "nats" {
		url := b.nats.URL()
		if b.slow != nil {
			url = "nats://" + b.slow.Addr().String()
		}
		return fmt.Sprintf("{nats: {url: %q}}", url)
	}
	return fmt.Sprintf("{http: {url: %q, allow_networks: [127.0.0.0/8]}}", b.receiver.URL)
}

// folder is where the binary, the configuration and the log are.
func (b *bed) folder() string { return filepath.Clean(b.dir) }

// throttle listens for connections to an address, which are a link that sends so many bytes a second, all together.
func throttle(address string, rate int) (net.Listener, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var free time.Time
	send := func(to io.Writer, from net.Conn) {
		buffer := make([]byte, 4<<10)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			mu.Lock()
			if now := time.Now(); free.Before(now) {
				free = now
			}
			free = free.Add(time.Duration(n) * time.Second / time.Duration(rate))
			wait := time.Until(free)
			mu.Unlock()
			if wait > time.Millisecond {
				time.Sleep(wait)
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", address)
			if err != nil {
				client.Close()
				continue
			}
			_ = client.(*net.TCPConn).SetReadBuffer(16 << 10)
			go func() {
				send(server, client)
				server.Close()
			}()
			go func() {
				_, _ = io.Copy(client, server)
				client.Close()
			}()
		}
	}()
	return listener, nil
}
