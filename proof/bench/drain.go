package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/check"
)

// DrainConfig says what to drain. The zero value means the stated defaults.
type DrainConfig struct {
	Common
	Messages int           // default 1,000,000
	Bytes    int           // payload of each. Default 256
	Keys     int           // default 10,000
	Relays   int           // relays, each with a shard group of its own. Default 1
	Batch    int           // of the relay. Default: its own default
	RTT      time.Duration // added to every round trip to the broker. Default none
	Held     bool          // keep transactions open elsewhere meanwhile

	// Sweep repeats everything for each of several values of one setting; see [SweepNames]. Default none.
	Sweep  string
	Values []string

	proxied bool
}

// Limits of a drain.
const (
	minBytes = check.MinSize
	maxBytes = 1_000_000
	maxKeys  = 1_000_000
)

// drainSettings is what a sweep may vary.
func drainSettings() []drainSetting {
	number := func(field func(*DrainConfig) *int) func(*DrainConfig, string) error {
		return func(c *DrainConfig, value string) (err error) {
			*field(c), err = strconv.Atoi(value)
			if err != nil || *field(c) < 1 {
				return errors.New("want a positive number")
			}
			return nil
		}
	}
	return []drainSetting{
		{"batch", number(func(c *DrainConfig) *int { return &c.Batch })},
		{"bytes", number(func(c *DrainConfig) *int { return &c.Bytes })},
		{"backlog", number(func(c *DrainConfig) *int { return &c.Messages })},
		{"keys", number(func(c *DrainConfig) *int { return &c.Keys })},
		{"relays", number(func(c *DrainConfig) *int { return &c.Relays })},
		{"rtt", func(c *DrainConfig, value string) (err error) {
			if c.RTT, err = time.ParseDuration(value); err != nil || c.RTT < 0 {
				return errors.New("want a duration such as 0s or 1ms")
			}
			return nil
		}},
		{"held", func(c *DrainConfig, value string) error {
			if value != "on" && value != "off" {
				return errors.New("want on or off")
			}
			c.Held = value == "on"
			return nil
		}},
	}
}

type drainSetting struct {
	name string
	set  func(*DrainConfig, string) error
}

// SweepNames are the settings that Sweep may name.
func SweepNames() []string {
	var names []string
	for _, s := range drainSettings() {
		names = append(names, s.name)
	}
	return names
}

// prepare fills what is zero, reports all faults together, and returns a config for each point of the
// sweep.
func (c *DrainConfig) prepare() ([]DrainConfig, error) {
	faults := c.Common.choose([]string{Floor, Relay}, append(logReaders(), ExactlyOnce))
	if c.Broker != "kafka" && slices.Contains(c.Contenders, ExactlyOnce) {
		faults = append(faults, fmt.Errorf("contender %s delivers to Kafka alone", ExactlyOnce))
	}
	setDefault(&c.Messages, 1_000_000)
	setDefault(&c.Bytes, 256)
	setDefault(&c.Keys, 10_000)
	setDefault(&c.Relays, 1)
	if c.Binary == "" {
		faults = append(faults, errors.New("the path of the binary is missing"))
	}
	points := []DrainConfig{*c}
	if c.Sweep != "" {
		var err error
		points, err = c.points()
		faults = append(faults, err)
	}
	for i := range points {
		points[i].proxied = c.Sweep == "rtt" || c.RTT > 0
		if err := points[i].check(); err != nil {
			faults = append(faults, err)
			break // the others will have the same
		}
	}
	return points, errors.Join(faults...)
}

func (c *DrainConfig) points() (points []DrainConfig, err error) {
	for _, s := range drainSettings() {
		if s.name != c.Sweep {
			continue
		}
		if len(c.Values) == 0 {
			return nil, fmt.Errorf("sweep %s has no values", c.Sweep)
		}
		for _, value := range c.Values {
			point := *c
			if err := s.set(&point, value); err != nil {
				return nil, fmt.Errorf("sweep %s=%s: %w", c.Sweep, value, err)
			}
			point.Values = []string{value}
			points = append(points, point)
		}
		return points, nil
	}
	return nil, fmt.Errorf("sweep %q: want one of %v", c.Sweep, SweepNames())
}

func (c *DrainConfig) check() error {
	var faults []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	need(c.Messages >= 1, "%d messages: want at least one", c.Messages)
	need(c.Bytes >= minBytes && c.Bytes <= maxBytes, "%d bytes: want %d to %d", c.Bytes, minBytes, maxBytes)
	need(c.Keys >= 1 && c.Keys <= maxKeys, "%d keys: want 1 to %d", c.Keys, maxKeys)
	need(c.Relays >= 1 && c.Relays <= 64, "%d relays: want 1 to 64", c.Relays)
	need(c.Batch >= 0, "a batch of %d: want a positive number", c.Batch)
	need(c.RTT >= 0, "a round trip of %v: it can't be negative", c.RTT)
	need(!c.proxied || c.Address == "" || c.Broker == "nats",
		"the round trip to a Kafka can only be made longer where the benchmark starts it: leave out its address")
	return errors.Join(faults...)
}

func (c *DrainConfig) backlog() backlog { return backlog{c.Messages, c.Bytes, c.Keys, c.Held} }

// Validate reports everything that is wrong with c at once.
func (c DrainConfig) Validate() error {
	_, err := c.prepare()
	return err
}

// Drain loads an outbox and lets each contender deliver it, in turn, Rounds times; so for each point of a
// sweep. With an error it returns the results until then.
func Drain(ctx context.Context, cfg DrainConfig) ([]Result, error) {
	points, err := cfg.prepare()
	if err != nil {
		return nil, err
	}
	b, err := openBed(ctx, &cfg.Common, true, points[0].proxied)
	if err != nil {
		return nil, err
	}
	defer b.close()
	var results []Result
	var load *loaded
	defer func() {
		if load != nil {
			load.release()
		}
	}()
	for i := range points {
		point := &points[i]
		if point.Sweep != "" {
			cfg.say("%s = %s", point.Sweep, point.Values[0])
		}
		if b.proxy != nil {
			b.proxy.set(point.RTT)
		}
		if load == nil || load.backlog != point.backlog() {
			if load != nil {
				load.release()
			}
			if err := b.freshDatabase(ctx); err != nil {
				return results, err
			}
			if point.readsLog() {
				if err := b.prepareLog(ctx); err != nil {
					return results, err
				}
			}
			if load, err = b.load(ctx, point.backlog()); err != nil {
				return results, err
			}
		}
		if results, err = point.rounds(ctx, b, load, results); err != nil {
			return results, err
		}
	}
	return results, nil
}

func (c *DrainConfig) rounds(ctx context.Context, b *bed, load *loaded, results []Result) ([]Result, error) {
	for round := range c.Rounds {
		first := len(results)
		for _, name := range c.order(round) {
			r, err := c.once(ctx, b, load, name)
			if err != nil {
				return results, fmt.Errorf("%s, round %d: %w", name, round+1, err)
			}
			r.Round = round + 1
			c.say("round %d of %d: %s, %.0f messages/s", r.Round, c.Rounds, name, r.Rate)
			results = append(results, r)
		}
		compare(results[first:])
	}
	return results, nil
}

// once lets one contender deliver everything, as a process or several, and checks what arrived.
func (c *DrainConfig) once(ctx context.Context, b *bed, load *loaded, name string) (Result, error) {
	r := Result{Bench: "drain", Contender: name, Broker: c.Broker, Messages: c.Messages, Bytes: c.Bytes, Keys: c.Keys, Relays: 1, Settings: c.settings(b, name)}
	if name == Relay {
		r.Relays = c.Relays
	}
	if c.Sweep != "" {
		r.Sweep, r.Value = c.Sweep, c.Values[0]
	}
	b.describe(&r)
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return r, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "DELETE FROM outbox.cursors; DELETE FROM outbox.slots"); err != nil { // so that everything is new
		return r, err
	}
	if slices.Contains(logReaders(), name) {
		if err := b.standBefore(ctx, conn, name); err != nil {
			return r, err
		}
	}
	if err := b.to.fresh(ctx); err != nil {
		return r, err
	}
	if name == ExactlyOnce {
		to, err := newExactlyOnceTarget(b.to, conn)
		if err != nil {
			return r, err
		}
		defer to.close()
		b = b.deliveringTo(to)
	}
	backend := conn.PgConn().PID()
	databaseBefore := databaseCPU(backend)
	team, err := c.start(b, name)
	defer team.stop()
	if err != nil {
		return r, err
	}
	began, err := team.begun(ctx)
	if err != nil {
		return r, err
	}
	arrivals, err := c.awaitAll(ctx, b.to, team, began)
	if err != nil {
		return r, err
	}
	r.Seconds = arrivals.end.Seconds()
	r.Rate = float64(c.Messages) / r.Seconds
	r.P50, r.P95, r.P99, r.Max = arrivals.at(0.5), arrivals.at(0.95), arrivals.at(0.99), milliseconds(arrivals.end)
	r.DatabaseCPU = databaseCPU(backend) - databaseBefore
	r.RSSMB = team.peakRSS()
	r.RelayCPU = team.stop()
	if err := readBack(ctx, b.to, load, &r); err != nil {
		return r, fmt.Errorf("read back what arrived: %w", err)
	}
	return r, nil
}

// settings are those that aren't in other fields.
func (c *DrainConfig) settings(b *bed, name string) map[string]string {
	s := map[string]string{"rows_per_transaction": strconv.Itoa(rowsPerTransaction)}
	if c.Broker == "kafka" {
		s["partitions"] = strconv.Itoa(partitions)
	}
	if b.proxy != nil {
		s["rtt"] = c.RTT.String()
	}
	if c.Held {
		s["held"] = "on"
	}
	if (name == Relay || name == ExactlyOnce) && c.Batch > 0 {
		s["batch"] = strconv.Itoa(c.Batch)
	}
	return s
}

// readBack checks the whole topic against what was committed.
func readBack(ctx context.Context, to target, load *loaded, r *Result) error {
	n, err := to.count(ctx) // the contenders have ended: nothing comes any more
	if err != nil {
		return err
	}
	checker := load.checker()
	at := checker.Destination("default")
	err = to.consume(ctx, func(payload []byte) bool {
		_, _ = at.Payload(payload) // what doesn't decode is counted
		n--
		return n > 0
	})
	if err != nil {
		return err
	}
	r.checked(checker.Report())
	return nil
}

// progress is how many messages had arrived at some time.
type progress struct {
	after time.Duration
	n     int
}

// arrivals is the course of a drain.
type arrivals struct {
	course []progress
	total  int
	end    time.Duration
}

// at is when that share of the messages had arrived, in milliseconds since the beginning: the age that a
// message reaches which was due at the beginning.
func (a *arrivals) at(share float64) float64 {
	want := share * float64(a.total)
	before := progress{}
	for _, p := range a.course {
		if float64(p.n) >= want {
			part := (want - float64(before.n)) / float64(p.n-before.n)
			return milliseconds(before.after) + part*milliseconds(p.after-before.after)
		}
		before = p
	}
	return milliseconds(a.end)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// stalled is how long a drain may make no progress.
const stalled = time.Minute

func (c *DrainConfig) awaitAll(ctx context.Context, to target, team team, began time.Time) (*arrivals, error) {
	a := &arrivals{total: c.Messages}
	last, since := 0, time.Now()
	for {
		n, err := to.count(ctx)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		if n > last {
			last, since = n, now
			a.course = append(a.course, progress{now.Sub(began), n})
		}
		if n >= c.Messages {
			a.end = now.Sub(began)
			return a, nil
		}
		if err := team.ended(); err != nil {
			return nil, fmt.Errorf("after %d messages: %w", n, err)
		}
		if now.Sub(since) > stalled {
			return nil, team[0].failure(fmt.Errorf("nothing has come for %v after %d of %d messages", stalled, n, c.Messages))
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// team is the processes of one contender.
type team []*process

func (c *DrainConfig) start(b *bed, name string) (team, error) {
	o := order{Database: b.url, Broker: c.Broker, Address: b.to.address(), Topic: b.topic}
	if name == ExactlyOnce || name == Relay && c.Relays == 1 {
		p, err := startRelay(b, c.Batch)
		return team{p}.present(), err
	}
	if name == Replication {
		p, err := startRelayWith(b, c.Batch, "    replication: {slot: "+b.slot(name)+"}\n")
		return team{p}.present(), err
	}
	n := 1
	o.Part = partCopy
	if name == Pgoutput {
		o.Part, o.Slot = partWAL, b.slot(name)
	}
	if name == Relay {
		n = c.Relays
		o.Part, o.Groups, o.Batch = partGroup, c.Relays, c.Batch
	}
	var t team
	for i := range n {
		o.Group = i
		p, err := startPart(o)
		if err != nil {
			return t, err
		}
		t = append(t, p)
	}
	return t, nil
}

// startRelay starts "outbox relay" with everything left at its default but where to read and write, and
// what must not happen meanwhile: that what was delivered is removed.
func startRelay(b *bed, batch int) (*process, error) { return startRelayWith(b, batch, "") }

// startRelayWith is startRelay with more lines in the destination.
func startRelayWith(b *bed, batch int, more string) (*process, error) {
	return startRelayNamed(b, "bench", batch, more)
}

// startRelayNamed is startRelayWith for one of several: they are told apart by their names.
func startRelayNamed(b *bed, name string, batch int, more string) (*process, error) {
	dir, err := os.MkdirTemp("", "pgoutbox-bench-")
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("name: %s\ndatabase: {url: %q}\nhttp: {listen: \"\"}\nlog: {format: json}\nretention: {enabled: false}\n"+
		"destinations:\n  - name: %s\n    broker: %s\n%s", name, b.url, destination, b.to.yaml(), more)
	if batch > 0 {
		text += fmt.Sprintf("    delivery: {batch: %d, max_in_flight: %d}\n", batch, max(20_000, 2*batch))
	}
	path := filepath.Join(dir, "outbox.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	p, err := startProcess(Relay, b.common.Binary, "relay", "--config", path)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	p.dir = dir
	return p, nil
}

// present leaves out what failed to start.
func (t team) present() team {
	if t[0] == nil {
		return nil
	}
	return t
}

// begun returns when the first of them began.
func (t team) begun(ctx context.Context) (first time.Time, err error) {
	for i, p := range t {
		at, err := p.begun(ctx)
		if err != nil {
			return at, err
		}
		if i == 0 || at.Before(first) {
			first = at
		}
	}
	return first, nil
}

func (t team) ended() error {
	var errs []error
	for _, p := range t {
		errs = append(errs, p.ended())
	}
	return errors.Join(errs...)
}

// peakRSS is that of the largest.
func (t team) peakRSS() float64 {
	peak := 0.0
	for _, p := range t {
		peak = max(peak, peakRSS(p.pid))
	}
	return peak
}

// stop ends all and returns their CPU seconds.
func (t team) stop() float64 {
	total := 0.0
	for _, p := range t {
		total += p.stop()
	}
	return total
}
