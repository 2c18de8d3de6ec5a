package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/rig"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/servers"
)

// What every run has.
const (
	keys        = 60
	maxInFlight = 400
	lease       = time.Second
	faultsARun  = 3

	// flowWithin is how soon messages have to flow again after a fault, unless it says otherwise.
	flowWithin = 15 * time.Second
	// drainWithin is how soon everything has to be delivered once nothing is wrong any more.
	drainWithin = 60 * time.Second
	// enough committed messages make a load.
	enough = 300
)

// run is one history: a fresh database and a fresh topic, relays, writers, and what goes wrong.
type run struct {
	seed   uint64
	site   *site
	binary string
	dir    string // artefacts
	rng    *rand.Rand
	broker string

	database string
	topic    string
	target   rig.Target
	relays   []*rig.Relay
	load     *rig.Load
	losses   rig.Losses
	checker  *check.Checker
	extra    int // duplicates that a promotion explains beside what was in flight

	mu    sync.Mutex
	began time.Time
	story *os.File

	background sync.WaitGroup
	cleanup    []func()
}

// result is what a run showed.
type result struct {
	seed        uint64
	broker      string
	faults      []injected
	truth       rig.Truth
	report      check.Report
	allowed     int // duplicates
	took        time.Duration
	err         error // why the run is bad; nil: every promise was kept
	interrupted bool
	dir         string
}

// injected is one fault that a run had.
type injected struct {
	kind     string
	repeats  int
	recovery time.Duration // until messages flowed again
}

func newRun(seed uint64, s *site, binary, dir string) *run {
	rng := rand.New(rand.NewPCG(seed, 0x6e656d65736973))
	r := &run{seed: seed, site: s, binary: binary, dir: dir, rng: rng, checker: check.New(check.Config{}), began: time.Now()}
	r.broker = brokerOf(seed)
	r.topic = fmt.Sprintf("events_%d_%d", seed, time.Now().UnixNano()%1e9)
	return r
}

// brokerOf alternates, and so that a kind of fault meets both.
func brokerOf(seed uint64) string {
	if (seed+seed/deckSeeds())%2 == 0 {
		return "nats"
	}
	return "kafka"
}

// do runs the history.
func (r *run) do(ctx context.Context) (res result) {
	res = result{seed: r.seed, broker: r.broker, dir: r.dir}
	defer func() {
		if ctx.Err() != nil {
			res.interrupted = true
		}
		res.err = errors.Join(res.err, r.tearDown(context.WithoutCancel(ctx)))
		res.took = time.Since(r.began)
	}()
	if res.err = r.setUp(ctx); res.err != nil {
		res.err = fmt.Errorf("set up: %w", res.err)
		return res
	}
	r.load.Start()
	if _, err := r.flows(ctx, flowWithin); err != nil {
		res.err = fmt.Errorf("before any fault: %w", err)
		return res
	}
	for _, f := range faultsOf(r.seed, r.site.storage != nil) {
		recovery, err := r.inject(ctx, f)
		res.faults = append(res.faults, injected{f.kind, f.repeats, recovery})
		res.allowed += f.repeats * maxInFlight
		if err != nil {
			res.err = fmt.Errorf("%s: %w", f.kind, err)
			return res
		}
	}
	res.err = r.settle(ctx, &res)
	return res
}

func (r *run) setUp(ctx context.Context) (err error) {
	if r.story, err = os.Create(filepath.Join(r.dir, "story.txt")); err != nil {
		return err
	}
	if err := r.site.heal(ctx); err != nil {
		return err
	}
	if r.database, err = r.site.database(ctx); err != nil {
		return err
	}
	var proxy *rig.Proxy
	if r.broker == "nats" {
		r.target, proxy = rig.NATSTopic{URL: r.site.nats.URL(), Topic: r.topic}, r.site.toNATS
	} else {
		r.target, proxy = rig.KafkaTopic{Addr: r.site.kafka.Addr(), Topic: r.topic}, r.site.toKafka
	}
	if err := r.target.Create(ctx); err != nil {
		return err
	}
	oversize := 0
	if slices.ContainsFunc(faultsOf(r.seed, r.site.storage != nil), func(f fault) bool { return f.kind == oversizeMessages }) {
		oversize = 50
	}
	r.load, err = rig.NewLoad(ctx, r.site.pg.URL(r.database), rig.LoadConfig{Topic: r.topic, Keys: keys, Writers: 3, Pause: 2 * time.Millisecond,
		Seed: r.seed, Big: rig.MaxMessage + 50_000, BigOneIn: oversize, Dies: 20})
	if err != nil {
		return err
	}
	for i := range 2 {
		name := fmt.Sprint("relay-", i+1)
		relay, err := rig.StartRelay(r.binary, r.dir, name, fmt.Sprintf(`name: %s
database: {url: %q}
http: {listen: ""}
log: {level: debug}
retention: {interval: 1s}
destinations:
  - name: events
    broker: %s
    lease: %s
    delivery: {max_in_flight: %d, batch: %d, backoff: {initial: 20ms}}
`, name, r.site.relayURL(r.database), r.target.YAML(proxy.Addr()), lease, maxInFlight, maxInFlight/4))
		if err != nil {
			return err
		}
		r.relays = append(r.relays, relay)
	}
	return nil
}

// broke returns the server and the proxy of the run's broker.
func (r *run) brokerServer() (*servers.Server, *rig.Proxy) {
	if r.broker == "nats" {
		return &r.site.nats.Server, r.site.toNATS
	}
	return &r.site.kafka.Server, r.site.toKafka
}

// inject lets one fault happen and waits until messages flow again.
func (r *run) inject(ctx context.Context, f fault) (time.Duration, error) {
	// Each in the middle of something.
	if err := pause(ctx, time.Duration(100+r.rng.IntN(400))*time.Millisecond); err != nil {
		return 0, err
	}
	r.note("fault: %s", f.kind)
	after, err := f.inject(ctx, r)
	if err != nil {
		return 0, err
	}
	within := flowWithin
	if f.within > 0 {
		within = f.within
	}
	recovery, err := r.flows(ctx, within)
	if err != nil {
		return recovery, err
	}
	r.note("flows after %v", recovery)
	if after != nil {
		if err := after(ctx); err != nil {
			return recovery, err
		}
		r.note("undone: %s", f.kind)
	}
	return recovery, nil
}

// flows waits until messages are settled that were not yet when it was called.
func (r *run) flows(ctx context.Context, within time.Duration) (time.Duration, error) {
	began := time.Now()
	first := int64(-1)
	for {
		n, err := r.delivered(ctx)
		if err == nil && first < 0 {
			first = n
		}
		if err == nil && n > first {
			return time.Since(began), nil
		}
		if !slices.ContainsFunc(r.relays, func(relay *rig.Relay) bool { return !relay.Ended() }) {
			return 0, fmt.Errorf("no relay runs any more; the log of %s ends with:\n%s", r.relays[0].Name, r.relays[0].Log())
		}
		if time.Since(began) > within {
			if err == nil {
				err = errors.New("the database answers")
			}
			return within, fmt.Errorf("no message was delivered for %v (%d were before; %w)", within, n, err)
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// delivered is how many messages the cursor counts.
func (r *run) delivered(ctx context.Context) (n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err = r.load.Pool().QueryRow(ctx, "SELECT coalesce(sum(delivered), 0)::bigint FROM outbox.cursors").Scan(&n)
	return n, err
}

// owner returns the relay that holds the lease, and waits for one.
func (r *run) owner(ctx context.Context, except string) (*rig.Relay, error) {
	deadline := time.Now().Add(flowWithin)
	for {
		var name string
		err := r.load.Pool().QueryRow(ctx, "SELECT coalesce(max(owner), '') FROM outbox.cursors WHERE lease_until > clock_timestamp()").Scan(&name)
		if i := slices.IndexFunc(r.relays, func(relay *rig.Relay) bool { return relay.Name == name }); err == nil && i >= 0 && name != except {
			return r.relays[i], nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("nobody but %q took the lease for %v: %w", except, flowWithin, err)
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// settle ends the writers, waits until everything is delivered, ends the relays in good order, and judges.
func (r *run) settle(ctx context.Context, res *result) (err error) {
	for deadline := time.Now().Add(10 * time.Second); r.load.Committed() < enough && time.Now().Before(deadline); {
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	r.background.Wait()
	r.load.Stop()
	r.note("the writers have stopped")
	if err := r.readKept(ctx); err != nil {
		return err
	}
	if res.truth, err = r.load.Tell(ctx, r.checker, r.losses); err != nil {
		return err
	}
	destination := r.checker.Destination("default")
	if err := r.readDead(ctx, destination); err != nil {
		return err
	}
	reader, err := r.target.Read(ctx)
	if err != nil {
		return err
	}
	defer reader.Close()
	each := func(payload []byte) { _, _ = destination.Payload(payload) } // what doesn't decode is counted
	deadline := time.Now().Add(drainWithin)
	for r.checker.Outstanding() > 0 && time.Now().Before(deadline) {
		payloads, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		for _, p := range payloads {
			each(p)
		}
		if len(payloads) == 0 {
			if err := r.readDead(ctx, destination); err != nil {
				return err
			}
		}
	}
	if r.checker.Outstanding() == 0 {
		r.note("everything is delivered")
	}
	for _, relay := range r.relays {
		if relay.Ended() {
			err = errors.Join(err, fmt.Errorf("relay %s has ended by itself; its log ends with:\n%s", relay.Name, relay.Log()))
			continue
		}
		err = errors.Join(err, relay.Stop(20*time.Second))
	}
	// Nobody publishes any more: what is in the topic now is all that there will be.
	if err := errors.Join(err, rig.ReadOn(ctx, reader, each), r.readDead(ctx, destination)); err != nil {
		return err
	}
	res.report = r.checker.Report()
	res.allowed += r.extra
	return r.judge(ctx, res)
}

// judge compares what was found with what was promised.
func (r *run) judge(ctx context.Context, res *result) error {
	var faults []error
	report := res.report
	if !report.OK() {
		faults = append(faults, fmt.Errorf("the promises are broken: %v", report))
	}
	if report.Duplicated > uint64(res.allowed) {
		faults = append(faults, fmt.Errorf("%d duplicates, of which at most %d were in flight at the faults", report.Duplicated, res.allowed))
	}
	if res.truth.Committed < enough {
		faults = append(faults, fmt.Errorf("only %d messages were committed: the run had no load", res.truth.Committed))
	}
	if report.DeadLettered != uint64(res.truth.Big) {
		faults = append(faults, fmt.Errorf("%d dead letters, but %d messages are too large", report.DeadLettered, res.truth.Big))
	}
	var holds int
	if err := r.load.Pool().QueryRow(ctx, "SELECT count(*) FROM outbox.holds").Scan(&holds); err != nil {
		faults = append(faults, err)
	} else if holds > 0 {
		faults = append(faults, fmt.Errorf("%d messages are held after everything was delivered", holds))
	}
	return errors.Join(faults...)
}

// readDead tells the checker of the dead letters.
func (r *run) readDead(ctx context.Context, to *check.Destination) error {
	rows, err := r.load.Pool().Query(ctx, "SELECT payload FROM outbox.dead_letters")
	if err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var payload []byte
		if err := rows.Scan(&payload); err != nil {
			return fmt.Errorf("read the dead letters: %w", err)
		}
		name, err := check.Decode(payload)
		if err != nil {
			return fmt.Errorf("a dead letter: %w", err)
		}
		if !r.load.IsBig(name) {
			return fmt.Errorf("message %v is a dead letter, and nothing was wrong with it", name)
		}
		to.DeadLettered(name.Key, name.Seq)
	}
	return rows.Err()
}

// readKept notes with what the topic begins that replaced a deleted one.
func (r *run) readKept(ctx context.Context) error {
	if r.losses.Emptied.IsZero() {
		return nil
	}
	// What was committed before the topic came back may still be on its way.
	r.losses.Kept = make(map[uint32]uint64)
	if err := r.idle(ctx); err != nil {
		return err
	}
	return rig.ReadAll(ctx, r.target, func(payload []byte) {
		if name, err := check.Decode(payload); err == nil {
			if first, ok := r.losses.Kept[name.Key]; !ok || name.Seq < first {
				r.losses.Kept[name.Key] = name.Seq
			}
		}
	})
}

// idle waits until the cursor has stood still for a while, with no writer at work.
func (r *run) idle(ctx context.Context) error {
	var last int64
	since := time.Now()
	for deadline := time.Now().Add(drainWithin); time.Since(since) < 2*time.Second && time.Now().Before(deadline); {
		n, err := r.delivered(ctx)
		if err != nil {
			return err
		}
		if n != last {
			last, since = n, time.Now()
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// tearDown ends what the run has started and removes what it has made.
func (r *run) tearDown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var errs []error
	for _, relay := range r.relays {
		errs = append(errs, relay.Kill())
	}
	for _, undo := range slices.Backward(r.cleanup) {
		undo()
	}
	if r.load != nil {
		r.load.Stop()
		r.background.Wait()
		r.load.Close()
	}
	errs = append(errs, r.site.heal(ctx))
	if r.target != nil {
		errs = append(errs, r.target.Delete(ctx))
	}
	if r.database != "" {
		errs = append(errs, r.site.dropDatabase(ctx, r.database))
	}
	if r.story != nil {
		errs = append(errs, r.story.Close())
	}
	return errors.Join(errs...)
}

// note writes a line of the run's story.
func (r *run) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.story, "%8.3fs  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// freeze halts a relay.
func freeze(relay *rig.Relay) error { return relay.Signal(syscall.SIGSTOP) }

// thaw lets it go on.
func thaw(relay *rig.Relay) error { return relay.Signal(syscall.SIGCONT) }
