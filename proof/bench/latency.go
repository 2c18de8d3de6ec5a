package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/mapping"
)

// LatencyConfig says what to measure. The zero value means the stated defaults.
type LatencyConfig struct {
	Common
	Rates  []int         // messages per second. Default 200 and 1,000
	For    time.Duration // of load that is measured. Default 10 s
	WarmUp time.Duration // of load before that. Default 2 s
	Idle   time.Duration // without load, before it. Default 5 s
	Bytes  int           // payload of each. Default 256
}

const (
	latencyWriters = 8
	latencyKeys    = 64 // of each writer
)

func (c *LatencyConfig) prepare() error {
	faults := c.Common.choose([]string{Floor, Relay, InProcess}, logReaders())
	if c.Rates == nil {
		c.Rates = []int{200, 1000}
	}
	setDefault(&c.For, 10*time.Second)
	setDefault(&c.WarmUp, 2*time.Second)
	setDefault(&c.Idle, 5*time.Second)
	setDefault(&c.Bytes, 256)
	need := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	need(len(c.Rates) > 0, "no rate is given")
	for _, rate := range c.Rates {
		need(rate >= 1 && rate <= 100_000, "a rate of %d: want 1 to 100,000 messages a second", rate)
	}
	need(c.For > 0 && c.WarmUp >= 0 && c.Idle >= 0, "durations of %v, %v and %v: they must be positive", c.For, c.WarmUp, c.Idle)
	need(c.Bytes >= minBytes && c.Bytes <= maxBytes, "%d bytes: want %d to %d", c.Bytes, minBytes, maxBytes)
	need(c.Binary != "", "the path of the binary is missing")
	return errors.Join(faults...)
}

// Validate reports everything that is wrong with c at once.
func (c LatencyConfig) Validate() error {
	return c.prepare()
}

// Latency measures, for each rate, the time from the return of COMMIT until a consumer has the message.
// With an error it returns the results until then.
func Latency(ctx context.Context, cfg LatencyConfig) ([]Result, error) {
	if err := cfg.prepare(); err != nil {
		return nil, err
	}
	b, err := openBed(ctx, &cfg.Common, true, false)
	if err != nil {
		return nil, err
	}
	defer b.close()
	var results []Result
	for round := range cfg.Rounds {
		for _, rate := range cfg.Rates {
			first := len(results)
			for _, name := range cfg.order(round) {
				r, err := cfg.once(ctx, b, name, rate)
				if err != nil {
					return results, fmt.Errorf("%s at %d messages/s, round %d: %w", name, rate, round+1, err)
				}
				r.Round = round + 1
				cfg.say("round %d of %d, %d messages/s: %s, p50 %.2f ms, p99 %.2f ms", r.Round, cfg.Rounds, rate, name, r.P50, r.P99)
				results = append(results, r)
			}
			compare(results[first:])
		}
	}
	return results, nil
}

// once measures one contender: a phase without load, a phase of load, and a check of everything.
func (c *LatencyConfig) once(ctx context.Context, b *bed, name string, rate int) (Result, error) {
	r := Result{Bench: "latency", Contender: name, Broker: c.Broker, Bytes: c.Bytes, Keys: latencyWriters * latencyKeys, Relays: 1, TargetRate: rate,
		Settings: map[string]string{"writers": strconv.Itoa(latencyWriters), "warm_up": c.WarmUp.String(), "idle": c.Idle.String()}}
	if c.Broker == "kafka" {
		r.Settings["partitions"] = strconv.Itoa(partitions)
	}
	b.describe(&r)
	if err := b.freshDatabase(ctx); err != nil {
		return r, err
	}
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return r, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if name == Floor {
		if _, err := conn.Exec(ctx, plainSQL); err != nil {
			return r, err
		}
	}
	if name == Pgoutput {
		if _, err := conn.Exec(ctx, mapping.CreatePublicationSQL("outbox", mapping.TableName{Schema: "outbox", Name: "messages"})); err != nil {
			return r, err
		}
	}
	if err := b.to.fresh(ctx); err != nil {
		return r, err
	}

	writers, contender, err := c.start(b, name, rate)
	all := team{contender}
	if writers != contender {
		all = append(all, writers)
	}
	defer all.present().stop()
	if err != nil {
		return r, err
	}
	if _, err := all.begun(ctx); err != nil {
		return r, err
	}
	if name == Replication {
		if err := streams(ctx, conn, contender); err != nil {
			return r, err
		}
	}
	consumer := follow(ctx, b.to)
	defer consumer.stop()

	backend := conn.PgConn().PID()
	if c.Idle > 0 {
		// What connecting has stirred up settles first.
		if err := pause(ctx, min(c.Idle, time.Second)); err != nil {
			return r, err
		}
		relayBefore, databaseBefore := contender.cpuNow(), databaseCPU(backend)
		if err := pause(ctx, c.Idle); err != nil {
			return r, err
		}
		r.IdleCPU = (contender.cpuNow() - relayBefore) / c.Idle.Seconds()
		r.IdleDatabaseCPU = (databaseCPU(backend) - databaseBefore) / c.Idle.Seconds()
	}

	if _, err := writers.goOn(); err != nil {
		return r, err
	}
	if err := pause(ctx, c.WarmUp); err != nil {
		return r, err
	}
	relayBefore, databaseBefore, since := contender.cpuNow(), databaseCPU(backend), time.Now()
	if err := pause(ctx, c.For); err != nil {
		return r, err
	}
	r.RelayCPU, r.DatabaseCPU = contender.cpuNow()-relayBefore, databaseCPU(backend)-databaseBefore
	r.Seconds = time.Since(since).Seconds()

	var load loadResult
	if err := writers.hear(ctx, &load); err != nil {
		return r, err
	}
	if err := load.check(); err != nil {
		return r, err
	}
	if err := consumer.await(ctx, len(load.Written), contender); err != nil {
		return r, err
	}
	r.RSSMB = peakRSS(contender.pid)
	all.stop()
	received, err := consumer.stop()
	if err != nil {
		return r, fmt.Errorf("consume: %w", err)
	}
	c.evaluate(&r, load.Written, received)
	return r, nil
}

// start returns the process that writes and the one that is measured; in one process, they are the same.
func (c *LatencyConfig) start(b *bed, name string, rate int) (writers, contender *process, err error) {
	o := order{Database: b.url, Broker: c.Broker, Address: b.to.address(), Topic: b.topic}
	switch name {
	case Floor:
		o.Part = partPoll
		contender, err = startPart(o)
	case Relay:
		contender, err = startRelay(b, 0)
	case Replication:
		contender, err = startRelayWith(b, 0, "    replication: {slot: "+b.slot(name)+"}\n")
	case Pgoutput:
		o.Part = partWAL
		contender, err = startPart(o)
	}
	if err != nil {
		return nil, nil, err
	}
	o.Part = partLoad
	o.Load = &paced{Rate: rate, For: c.WarmUp + c.For, Writers: latencyWriters, Keys: latencyKeys, Bytes: c.Bytes, Seed: 1, Plain: name == Floor}
	if name != InProcess {
		o.Broker = "" // a relay is there already
	}
	if writers, err = startPart(o); err != nil {
		return contender, contender, err
	}
	if name == InProcess {
		contender = writers
	}
	return writers, contender, nil
}

// evaluate compares what was written with what was received.
func (c *LatencyConfig) evaluate(r *Result, all []written, received []received) {
	checker := check.New(check.Config{})
	at := checker.Destination("default")
	committed := make(map[check.ID]written, len(all))
	writing, delivering := newHistogram(), newHistogram()
	for _, w := range all {
		checker.Committed(w.Key, w.Seq)
		committed[check.ID{Key: w.Key, Seq: w.Seq}] = w
		if w.Due >= c.WarmUp {
			r.Messages++
			record(writing, time.Duration(w.Committed-w.Began)-w.Due)
		}
	}
	for _, m := range received {
		if m.bad {
			r.Corrupted++
			continue
		}
		at.Delivered(m.id.Key, m.id.Seq)
		if w, ours := committed[m.id]; ours && w.Due >= c.WarmUp {
			record(delivering, time.Duration(m.at-w.Committed))
			delete(committed, m.id) // a duplicate is no later delivery
		}
	}
	r.Rate = float64(r.Messages) / c.For.Seconds()
	r.P50, r.P95, r.P99, r.Max = quantiles(delivering)
	_, _, r.WriteP99, _ = quantiles(writing)
	r.WriteP50 = float64(writing.ValueAtQuantile(50)) / 1000
	corrupted := r.Corrupted
	r.checked(checker.Report())
	r.Corrupted += corrupted
}

// newHistogram counts microseconds up to ten minutes, to three digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, (10 * time.Minute).Microseconds(), 3)
}

// record counts a time. A consumer may have a message before the writer has learnt that it is committed:
// that is a latency of nothing.
func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(d.Microseconds(), 0), (10 * time.Minute).Microseconds())) // it is within the bounds
}

// quantiles are p50, p95, p99 and the maximum, in milliseconds; all 0 if there is nothing.
func quantiles(h *hdrhistogram.Histogram) (p50, p95, p99, highest float64) {
	if h.TotalCount() == 0 {
		return 0, 0, 0, 0
	}
	ms := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1000 }
	return ms(50), ms(95), ms(99), float64(h.Max()) / 1000
}

// received is one message at the consumer.
type received struct {
	id  check.ID
	at  int64 // nanoseconds since 1970
	bad bool  // it was none of ours
}

// consumer follows a topic and notes when what comes.
type consumer struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // to be read after done

	mu  sync.Mutex
	all []received
}

func follow(ctx context.Context, to target) *consumer {
	ctx, cancel := context.WithCancel(ctx)
	c := &consumer{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		err := to.consume(ctx, func(payload []byte) bool {
			at := time.Now().UnixNano()
			id, err := check.Decode(payload)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.all = append(c.all, received{id, at, err != nil})
			return true
		})
		if ctx.Err() == nil {
			c.err = err
		}
	}()
	return c
}

func (c *consumer) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

// quiet is how long nothing must come until what is missing counts as lost. The lease of a relay that
// hangs is shorter.
const quiet = 5 * time.Second

// await waits until n messages have come, or until nothing comes any more.
func (c *consumer) await(ctx context.Context, n int, contender *process) error {
	for last, since := -1, time.Now(); ; {
		count := c.count()
		if count >= n {
			return nil
		}
		if count > last {
			last, since = count, time.Now()
		}
		if time.Since(since) > quiet {
			return nil // the check counts what is lost
		}
		if err := contender.ended(); err != nil {
			return err
		}
		select {
		case <-c.done:
			return fmt.Errorf("consume: %w", c.err)
		default:
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// stop ends the consumer and returns what it has received.
func (c *consumer) stop() ([]received, error) {
	c.cancel()
	<-c.done
	return c.all, c.err
}
