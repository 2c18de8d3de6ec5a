package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/proof/rig"
)

const (
	latencyWriters = 8
	latencyKeys    = 64 // of each writer
)

// latency measures the time from the return of COMMIT until a consumer has the message: a phase without load, a phase
// of load, and a check of everything.
func (r *run) latency(ctx context.Context) (Result, error) {
	result := r.result(map[string]any{"writers": latencyWriters, "warm_up": r.WarmUp, "idle": r.Idle, "busy_cores": r.Busy})
	var others team
	defer func() { others.stop() }()
	for range r.Busy {
		other, err := startPart(order{Part: partSpin})
		if err != nil {
			return result, err
		}
		others = append(others, other)
	}
	result.Keys, result.TargetRate = latencyWriters*latencyKeys, r.Rates[0]
	if err := r.freshDatabase(ctx); err != nil {
		return result, err
	}
	conn, hangUp, err := r.connect(ctx)
	if err != nil {
		return result, err
	}
	defer hangUp()
	if sql := map[string]string{Floor: plainSQL, Pgoutput: publicationSQL()}[r.name]; sql != "" {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return result, err
		}
	}
	if err := r.to.fresh(ctx); err != nil {
		return result, err
	}
	all, err := r.startBoth()
	defer all.stop()
	if err != nil {
		return result, err
	}
	contender, writers := all[0], all[len(all)-1]
	if _, err := all.begun(ctx, false, nil); err != nil {
		return result, err
	}
	if r.name == Replication {
		if err := streams(ctx, conn, contender); err != nil {
			return result, err
		}
	}
	consumer := follow(ctx, r.to)
	defer consumer.stop()

	backend := conn.PgConn().PID()
	// spent is what contender and database use for a while.
	spent := func(during time.Duration) (relay, database, seconds float64, err error) {
		relayBefore, databaseBefore, since := contender.cpuNow(), rig.DatabaseCPU(backend), time.Now()
		err = rig.Pause(ctx, during)
		return contender.cpuNow() - relayBefore, rig.DatabaseCPU(backend) - databaseBefore, time.Since(since).Seconds(), err
	}
	if r.Idle > 0 {
		// What connecting has stirred up settles first.
		if err := rig.Pause(ctx, min(r.Idle, time.Second)); err != nil {
			return result, err
		}
		relay, database, _, err := spent(r.Idle)
		if err != nil {
			return result, err
		}
		result.IdleCPU, result.IdleDatabaseCPU = relay/r.Idle.Seconds(), database/r.Idle.Seconds()
	}
	if err := writers.goOn(); err != nil {
		return result, err
	}
	if err := rig.Pause(ctx, r.WarmUp); err != nil {
		return result, err
	}
	if result.RelayCPU, result.DatabaseCPU, result.Seconds, err = spent(r.For); err != nil {
		return result, err
	}
	var load loadResult
	if err := writers.hear(ctx, &load); err != nil {
		return result, err
	}
	if load.Err != "" {
		return result, errors.New(load.Err)
	}
	if err := consumer.await(ctx, all, quiet, len(load.Written), consumer.count); err != nil {
		return result, err
	}
	result.RSSMB = rig.PeakRSS(contender.PID())
	all.stop()
	received, err := consumer.stop()
	if err != nil {
		return result, fmt.Errorf("consume: %w", err)
	}
	r.evaluate(&result, load.Written, received)
	return result, nil
}

// startBoth starts the process that is measured and then the one that writes; in one process, they are the same.
func (r *run) startBoth() (all team, err error) {
	o := r.order(partLoad)
	o.Load = &paced{Rate: r.Rates[0], For: r.WarmUp + r.For,
		Writers: latencyWriters, Keys: latencyKeys, Bytes: r.Bytes, Seed: 1, Plain: r.name == Floor}
	if r.name != InProcess {
		if all, err = r.launch(); err != nil {
			return all, err
		}
		o.Broker = "" // a relay is there already
	}
	writers, err := startPart(o)
	if err == nil {
		all = append(all, writers)
	}
	return all, err
}

// evaluate compares what was written with what was received.
func (r *run) evaluate(result *Result, all []written, received []received) {
	checker := check.New(check.Config{})
	at := checker.Destination("default")
	committed := make(map[check.ID]written, len(all))
	writing, delivering := newHistogram(), newHistogram()
	for _, w := range all {
		checker.Committed(w.Key, w.Seq)
		committed[check.ID{Key: w.Key, Seq: w.Seq}] = w
		if w.Due >= r.WarmUp {
			result.Messages++
			record(writing, time.Duration(w.Committed-w.Began)-w.Due)
		}
	}
	corrupted := uint64(0)
	for _, m := range received {
		if m.bad {
			corrupted++
			continue
		}
		at.Delivered(m.id.Key, m.id.Seq)
		if w, ours := committed[m.id]; ours && w.Due >= r.WarmUp {
			record(delivering, time.Duration(m.at-w.Committed))
			delete(committed, m.id) // a duplicate is no later delivery
		}
	}
	result.Rate = float64(result.Messages) / r.For.Seconds()
	result.P50, result.P95, result.P99, result.Max = quantiles(delivering)
	result.WriteP50, _, result.WriteP99, _ = quantiles(writing)
	result.checked(checker.Report())
	result.Corrupted += corrupted
}

// live measures latency under a steady load behind a drain, and then the longest gap between arrivals while a
// transaction is open in another database of the server.
func (r *run) live(ctx context.Context, l *loaded, result *Result) error {
	before, err := r.to.count(ctx)
	if err != nil {
		return err
	}
	drained := 0
	for _, last := range l.last {
		drained += int(last)
	}
	consumer := follow(ctx, r.to)
	defer consumer.stop()
	// What was drained comes first.
	if err := consumer.await(ctx, r.team, 2*quiet, min(before, drained), consumer.distinct); err != nil {
		return err
	}
	conn, hangUp, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	committed := make(map[check.ID]int64)
	if err := r.commit(ctx, conn, l, r.For, committed); err != nil {
		return err
	}
	measured := maps.Clone(committed)
	from := time.Now()
	release, err := r.hold(ctx, r.server)
	if err != nil {
		return err
	}
	err = r.commit(ctx, conn, l, r.HeldFor, committed)
	release()
	if err != nil {
		return err
	}
	arrived := func() (n int) {
		for id := range committed {
			if consumer.arrival(id) != 0 {
				n++
			}
		}
		return n
	}
	if err := consumer.await(ctx, r.team, 4*quiet, len(committed), arrived); err != nil {
		return err
	}
	received, err := consumer.stop()
	if err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	h := newHistogram()
	for id, at := range measured {
		if came := consumer.arrival(id); came != 0 {
			record(h, time.Duration(came-at))
		}
	}
	result.P50, result.P95, result.P99, result.Max = quantiles(h)
	result.StallMS = milliseconds(consumer.longestGap(received, from.UnixNano()))
	return nil
}

// commit writes messages at a steady rate and notes when COMMIT returned.
func (r *run) commit(ctx context.Context, conn *pgx.Conn, l *loaded, during time.Duration, committed map[check.ID]int64) error {
	began := time.Now()
	for i := 0; ; i++ {
		due := began.Add(time.Duration(i) * time.Second / time.Duration(r.Rates[0]))
		if due.Sub(began) >= during {
			return nil
		}
		if err := rig.Pause(ctx, time.Until(due)); err != nil {
			return err
		}
		key := scatter(i) % r.Keys
		l.last[key]++
		row := r.layout.row(r.numbered(key, l.last[key]))
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if r.layout.live != "" {
				if _, err := tx.Exec(ctx, r.layout.live); err != nil {
					return err
				}
			}
			_, err := tx.CopyFrom(ctx, r.layout.table, r.layout.columns, pgx.CopyFromRows([][]any{row}))
			return err
		})
		if err != nil {
			return err
		}
		committed[check.ID{Key: uint32(key), Seq: l.last[key]}] = time.Now().UnixNano()
	}
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

// consumer follows the topics and notes what comes, and when.
type consumer struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // to be read after done

	mu    sync.Mutex
	all   []received
	first map[check.ID]int64 // when each message came first
}

func follow(ctx context.Context, to *target) *consumer {
	ctx, cancel := context.WithCancel(ctx)
	c := &consumer{cancel: cancel, done: make(chan struct{}), first: make(map[check.ID]int64)}
	go func() {
		defer close(c.done)
		err := to.consume(ctx, func(payload []byte) {
			at := time.Now().UnixNano()
			id, err := check.Decode(payload)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.all = append(c.all, received{id, at, err != nil})
			if c.first[id] == 0 && err == nil {
				c.first[id] = at
			}
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

// distinct is how many messages have come, however often.
func (c *consumer) distinct() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.first)
}

// arrival is when a message came first, or 0.
func (c *consumer) arrival(id check.ID) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first[id]
}

// longestGap is the longest time without a first arrival since from.
func (c *consumer) longestGap(all []received, from int64) time.Duration {
	longest, last := int64(0), from
	for _, m := range all {
		if !m.bad && m.at >= from && c.first[m.id] == m.at {
			longest, last = max(longest, m.at-last), m.at
		}
	}
	return time.Duration(longest)
}

// quiet is how long nothing must come until what is missing counts as lost. The lease of a relay that
// hangs is shorter.
const quiet = 5 * time.Second

// await waits until n messages have come, by come, or until nothing comes any more.
func (c *consumer) await(ctx context.Context, contender team, patience time.Duration, n int, come func() int) error {
	for last, since := -1, time.Now(); ; {
		count := come()
		if count > last {
			last, since = count, time.Now()
		}
		if count >= n || time.Since(since) > patience {
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
		if err := rig.Pause(ctx, 5*time.Millisecond); err != nil {
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
