package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/proof/rig"
)

// run is one contender's turn: a config with one rate or number of workers, on servers that are shared.
type run struct {
	*Config
	*bed
	contender
	workers      int
	work         Workload
	layout       layout
	transactions string // the id of the transactions that the relay is to deliver in, or ""
	team         team
	listens      string // the address of a relay, where somebody looks at its console
}

// Run measures each contender, in turn, Rounds times; so for each point of a sweep. With an error it returns the
// results until then.
func Run(ctx context.Context, cfg Config) (results []Result, err error) {
	points, err := cfg.prepare()
	if err != nil {
		return nil, err
	}
	b, err := openBed(ctx, &cfg, points[0].proxied)
	if err != nil {
		return nil, err
	}
	defer b.close()
	for i := range points {
		point := &points[i]
		if point.swept != "" {
			cfg.say("%s = %s", point.swept, point.value)
		}
		if b.proxy != nil {
			b.proxy.Distance(point.RTT)
		}
		for round := range cfg.Rounds {
			first := len(results)
			for _, variant := range point.variants() {
				for _, name := range point.order(round) {
					r := newRun(&variant, b, name)
					if r.single && r.workers > 1 {
						continue
					}
					result, err := r.once(ctx)
					if err != nil {
						compare(results[first:])
						return results, fmt.Errorf("%s%s, round %d: %w", name, r.which(), round+1, err)
					}
					result.Round = round + 1
					cfg.say("round %d of %d%s: %s, %s", round+1, cfg.Rounds, r.which(), name, result.outcome())
					results = append(results, result)
				}
			}
			compare(results[first:])
		}
	}
	return results, nil
}

func newRun(cfg *Config, b *bed, name string) *run {
	c, _ := findContender(cfg.Bench, name)
	r := &run{Config: cfg, bed: b, contender: c, workers: 1, work: cfg.work()}
	r.layout = layouts(b.topics, r.work.partitions)["default"]
	if name == ExactlyOnce { // another one for each run, which must find nothing of the one before
		r.transactions = "outbox-bench-" + strings.ToLower(rand.Text()[:8])
	}
	switch {
	case cfg.Bench == "strategies":
		r.workers, r.layout = cfg.Workers[0], layouts(b.topics, r.work.partitions)[c.layout]
	case cfg.Bench == "drain" && c.groups:
		r.workers = cfg.Relays
	}
	return r
}

// which says which of a contender's runs in a round it is.
func (r *run) which() string {
	switch r.Bench {
	case "latency":
		return fmt.Sprintf(", %d messages/s", r.Rates[0])
	case "strategies":
		return fmt.Sprintf(", %d workers", r.workers)
	}
	return ""
}

// outcome is the result in few words.
func (r *Result) outcome() string {
	switch r.Bench {
	case "latency":
		return fmt.Sprintf("p50 %.2f ms, p99 %.2f ms", r.P50, r.P99)
	case "write":
		return fmt.Sprintf("%.0f transactions/s", r.Rate)
	}
	return fmt.Sprintf("%.0f messages/s", r.Rate)
}

func (r *run) once(ctx context.Context) (Result, error) {
	switch r.Bench {
	case "latency":
		return r.latency(ctx)
	case "write":
		return r.write(ctx)
	}
	return r.drain(ctx)
}

// result is what is known before anything is measured.
func (r *run) result(settings map[string]any) Result {
	result := Result{Bench: r.Bench, Contender: r.name, Broker: r.Broker, Bytes: r.Bytes, Keys: r.Keys, Relays: r.workers,
		Sweep: r.swept, Value: r.value, Workload: r.Workload, Settings: map[string]string{},
		Versions: r.versions, Machine: rig.ThisMachine(), Date: time.Now().UTC().Format(time.DateOnly)}
	for name, value := range r.serverSettings {
		result.Settings[name] = value
	}
	for name, value := range settings {
		result.Settings[name] = fmt.Sprint(value)
	}
	if r.Broker == "kafka" {
		result.Settings["partitions"] = fmt.Sprint(r.work.partitions)
	}
	return result
}

// startRelay starts "outbox relay" with everything left at its default but where to read and write, and what must not
// happen meanwhile: that what was delivered is removed. more is lines of its destination.
func (r *run) startRelay(name string, batch int, more string) (*process, error) {
	r.listens = ""
	if r.Viewers > 0 {
		var err error
		if r.listens, err = rig.FreeAddress(); err != nil {
			return nil, err
		}
	}
	text := fmt.Sprintf("name: %s\ndatabase: {url: %q}\nhttp: {listen: %q}\nlog: {format: json}\nretention: {enabled: false}\n"+
		"destinations:\n  - name: %s\n    broker: %s\n%s", name, r.url, r.listens, destination, r.to.yaml(r.transactions), more)
	if batch > 0 {
		text += fmt.Sprintf("    delivery: {batch: %d}\n", batch)
	}
	dir, err := ownFolder(map[string]string{"outbox.yaml": text})
	if err != nil {
		return nil, err
	}
	return startProcess(Relay, dir, r.Binary, "relay", "--config", filepath.Join(dir, "outbox.yaml"))
}

// team is the processes of one contender.
type team []*process

// begun returns when all work, or with one true, when the first one does: of some contenders, others stand by. also,
// if it isn't nil, reports whether a contender works that doesn't say so.
func (t team) begun(ctx context.Context, one bool, also func() (bool, error)) (first time.Time, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("nothing has begun for a minute"))
	defer cancel()
	working := make(map[*process]bool)
	for {
		if also != nil {
			if works, err := also(); err != nil || works {
				return time.Now(), err
			}
		}
		for _, p := range t {
			if at, yes := p.began(); yes {
				if working[p] = true; first.IsZero() || at.Before(first) {
					first = at
				}
			}
		}
		if len(working) == len(t) || one && len(working) > 0 {
			return first, nil
		}
		if err := t.ended(); err != nil {
			return first, err
		}
		if rig.Pause(ctx, 2*time.Millisecond) != nil {
			return first, t[0].failure(context.Cause(ctx))
		}
	}
}

func (t team) ended() error {
	var errs []error
	for _, p := range t {
		errs = append(errs, p.ended())
	}
	return errors.Join(errs...)
}

// peakRSS is the sum of their peaks.
func (t team) peakRSS() (sum float64) {
	for _, p := range t {
		sum += rig.PeakRSS(p.PID())
	}
	return sum
}

// cpu is the seconds that all have used so far.
func (t team) cpu() (seconds float64) {
	for _, p := range t {
		seconds += p.cpuNow()
	}
	return seconds
}

func (t team) stop() {
	for _, p := range t {
		p.stop()
	}
}

// connect opens a connection to the run's database, and returns how it is closed.
func (r *run) connect(ctx context.Context) (*pgx.Conn, func(), error) {
	conn, err := pgx.Connect(ctx, r.url)
	if err != nil {
		return nil, func() {}, err
	}
	return conn, func() { _ = conn.Close(context.WithoutCancel(ctx)) }, nil // its server is stopped or its database dropped soon
}
