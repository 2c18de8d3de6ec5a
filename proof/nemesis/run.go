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
	"time"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
	"github.com/pgoutbox/outbox/proof/rig"
)

// What every run has.
const (
	keys        = 60
	maxInFlight = 400
	lease       = time.Second
	faultsARun  = 3

	// flowWithin is how soon messages must flow again after a fault, by default.
	flowWithin = 15 * time.Second
	// drainWithin is how soon everything must be delivered once nothing is broken any more.
	drainWithin = 60 * time.Second
	// enough committed messages make a load.
	enough = 300
)

// run is one history: a fresh database and a fresh topic, relays, writers, and faults.
type run struct {
	seed   uint64
	site   *site
	binary string
	dir    string // artefacts
	rng    *rand.Rand
	system system
	broker string
	faults []fault
	number int  // of relays
	pooled bool // whether writers use a pooler; one of the relays always does
	groups int  // shard groups

	database string
	topic    string
	target   rig.Target
	relays   []*rig.Relay
	load     *rig.Load
	losses   rig.Losses
	checker  *check.Checker
	extra    int // duplicates explained by a promotion, in addition to messages in flight

	mu    sync.Mutex
	began time.Time
	story *os.File

	background sync.WaitGroup
	cleanup    []func()
}

// result is the result of a run.
type result struct {
	seed        uint64
	system      string
	relays      int
	promised    bool // the order of keys
	broker      string
	groups      int // shard groups
	faults      []injected
	truth       rig.Truth
	delivered   int64 // by the database's count
	report      check.Report
	allowed     int // duplicates
	took        time.Duration
	err         error // why the run is bad; nil: all promises were kept
	interrupted bool
	dir         string
}

// injected is one fault that a run had.
type injected struct {
	kind     string
	repeats  int
	recovery time.Duration // until messages flowed again
}

// newRun returns a run with the faults of its seed, or with one kind only.
func newRun(seed uint64, o options, s *site, binary, dir string) *run {
	rng := rand.New(rand.NewPCG(seed, 0x6e656d65736973))
	r := &run{seed: seed, site: s, binary: binary, dir: dir, rng: rng, checker: check.New(check.Config{}), began: time.Now()}
	r.system, r.number = systemOf(seed, o.strategy)
	r.broker, r.pooled, r.groups = brokerOf(seed), seed%4 < 2, r.system.groupsOf(seed)
	if r.system.Log && r.system.Default() && seed%2 == 1 {
		r.system.CatchUp = "64KiB"
	}
	if r.system.exactlyOnce {
		r.broker = "kafka"
	}
	r.faults = faultsOf(seed, o.faults, func(f fault) bool { return s.can(f) && r.system.fits(f, r.number) })
	if o.kind != "" {
		alone := faults()[slices.IndexFunc(faults(), func(f fault) bool { return f.kind == o.kind })]
		r.faults = slices.Repeat([]fault{alone}, o.faults)
	}
	r.topic = fmt.Sprintf("events_%d_%d", seed, time.Now().UnixNano()%1e9)
	return r
}

// brokerOf alternates, such that a kind of fault meets both brokers.
func brokerOf(seed uint64) string {
	if (seed+seed/deckSeeds())%2 == 0 {
		return "nats"
	}
	return "kafka"
}

// do performs the run.
func (r *run) do(ctx context.Context) (res result) {
	res = result{seed: r.seed, system: r.system.String(), relays: r.number, promised: r.system.Ordered,
		broker: r.broker, groups: r.groups, dir: r.dir}
	defer func() {
		if ctx.Err() != nil {
			res.interrupted = true
		}
		res.err = errors.Join(res.err, r.tearDown(context.WithoutCancel(ctx)))
		res.took = time.Since(r.began)
	}()
	if res.err = r.open(ctx); res.err != nil {
		res.err = fmt.Errorf("set up: %w", res.err)
		return res
	}
	stop := r.supervise(ctx)
	defer stop()
	if res.err = r.setUp(ctx); res.err != nil {
		res.err = fmt.Errorf("set up: %w", res.err)
		return res
	}
	r.load.Start()
	if _, err := r.flows(ctx, flowWithin); err != nil {
		res.err = fmt.Errorf("before any fault: %w", err)
		return res
	}
	for _, f := range r.faults {
		recovery, err := r.inject(ctx, f)
		res.faults = append(res.faults, injected{f.kind, f.repeats, recovery})
		res.allowed += f.repeats * r.system.repeats() * r.groups
		if err != nil {
			res.err = fmt.Errorf("%s: %w", f.kind, err)
			return res
		}
	}
	res.err = r.settle(ctx, &res)
	return res
}

// open starts the run's parts, on a site where everything runs.
func (r *run) open(ctx context.Context) (err error) {
	if r.story, err = os.Create(filepath.Join(r.dir, "story.txt")); err != nil {
		return err
	}
	return r.site.heal(ctx)
}

func (r *run) setUp(ctx context.Context) (err error) {
	if r.database, err = r.site.database(ctx); err != nil {
		return err
	}
	var proxy *testnet.Proxy
	if r.broker == "nats" {
		r.target, proxy = rig.NATSTopic{URL: r.site.nats.URL(), Topic: r.topic}, r.site.toNATS
	} else {
		r.target, proxy = rig.KafkaTopic{Addr: r.site.kafka.Addr(), Topic: r.topic, ExactlyOnce: r.system.exactlyOnce}, r.site.toKafka
	}
	if err := r.target.Create(ctx); err != nil {
		return err
	}
	oversize := 0
	if slices.ContainsFunc(r.faults, func(f fault) bool { return f.kind == oversizeMessages }) {
		oversize = 50
	}
	r.load, err = rig.NewLoad(ctx, rig.LoadConfig{URL: r.site.writerURL(r.database, r.pooled),
		Direct: r.site.pg.URL(r.database), Topic: r.topic, Keys: keys, Writers: 3, Pause: 2 * time.Millisecond,
		Seed: r.seed, Big: rig.MaxMessage + 50_000, BigOneIn: oversize, Dies: 20, Table: r.system.Load()})
	if err != nil {
		return err
	}
	for i := range r.number {
		name := fmt.Sprint("relay-", i+1)
		relay, err := rig.StartRelay(r.binary, r.dir, name, fmt.Sprintf(`name: %s
database: {url: %q}
http: {listen: ""}
retention: {interval: 1s}
destinations:
  - name: %s
    broker: %s
    lease: %s
    shard_groups: %d
%s    delivery: {max_in_flight: %d, batch: %d, backoff: {initial: 20ms}}
`, name, r.site.relayURL(r.database, i == 1 && !r.system.Log), r.topic, r.target.YAML(proxy.Addr()), lease, r.groups,
			r.system.Destination(r.database, "    "), maxInFlight, maxInFlight/4))
		if err != nil {
			return err
		}
		r.relays = append(r.relays, relay)
	}
	for _, relay := range r.relays {
		if err := relay.Up(ctx, flowWithin); err != nil {
			return err
		}
	}
	return nil
}

// supervise restarts poolers that end by themselves: PgBouncer 1.18 ends when a client goes away while its request to
// cancel a query is being passed on. stop ends the supervision.
func (r *run) supervise(ctx context.Context) (stop func()) {
	if r.site.transactions == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		for rig.Pause(ctx, 100*time.Millisecond) == nil {
			for _, pooler := range []*servers.PgBouncer{r.site.transactions, r.site.sessions} {
				if pooler.Running() {
					continue
				}
				r.note("a pooler has ended; it is started again")
				if err := pooler.Restart(ctx); err != nil {
					r.note("%v", err)
				}
			}
		}
	})
	return func() { cancel(); done.Wait() }
}

// brokerServer returns the server and the proxy of the run's broker.
func (r *run) brokerServer() (*servers.Server, *testnet.Proxy) {
	if r.broker == "nats" {
		return &r.site.nats.Server, r.site.toNATS
	}
	return &r.site.kafka.Server, r.site.toKafka
}

// inject injects a fault and waits until messages flow again.
func (r *run) inject(ctx context.Context, f fault) (time.Duration, error) {
	// Each fault hits in the middle of traffic.
	if err := r.while(ctx, 100, 400); err != nil {
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

// flows waits until everything is settled that was committed when it was called.
func (r *run) flows(ctx context.Context, within time.Duration) (time.Duration, error) {
	took, err := r.load.Flows(ctx, within)
	if err == nil || ctx.Err() != nil {
		return took, err
	}
	for _, relay := range r.relays {
		if !relay.Running() {
			err = fmt.Errorf("%w\nrelay %s does not run; its log ends with:\n%s", err, relay.Name, relay.Log())
		}
	}
	return took, err
}

// owner waits for a relay that holds the lease, or some of the leases, and returns it.
func (r *run) owner(ctx context.Context) (*rig.Relay, error) {
	deadline := time.Now().Add(flowWithin)
	for {
		name, err := r.load.Owner(ctx)
		if i := slices.IndexFunc(r.relays, func(relay *rig.Relay) bool { return relay.Name == name }); err == nil && i >= 0 {
			return r.relays[i], nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("nobody took the lease for %v: %w", flowWithin, err)
		}
		if err := rig.Pause(ctx, 5*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// settle ends the writers, waits until everything is delivered, ends the relays regularly, and judges.
func (r *run) settle(ctx context.Context, res *result) error {
	for deadline := time.Now().Add(10 * time.Second); r.load.Committed() < enough && time.Now().Before(deadline); {
		if err := rig.Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	r.background.Wait()
	r.load.Stop()
	r.note("the writers have stopped")
	if err := r.readKept(ctx); err != nil {
		return err
	}
	verdict, err := r.load.Judge(ctx, r.target, r.checker, r.losses, drainWithin, r.stopRelays)
	if err != nil {
		return err
	}
	res.truth, res.report, res.delivered = verdict.Truth, verdict.Report, verdict.Delivered
	res.allowed += r.extra
	return judge(res, verdict.Held)
}

// stopRelays ends the relays regularly. They must all still be running, whatever has happened to them.
func (r *run) stopRelays() error {
	r.note("the relays are told to stop")
	var errs []error
	for _, relay := range r.relays {
		if !relay.Running() {
			errs = append(errs, fmt.Errorf("relay %s has ended by itself; its log ends with:\n%s", relay.Name, relay.Log()))
			continue
		}
		errs = append(errs, relay.Stop(time.Minute))
	}
	return errors.Join(errs...)
}

// judge compares what was found with what was promised.
func judge(res *result, held int) error {
	var faults []error
	report := res.report
	if !res.promised {
		report.Inverted = 0
	}
	if !report.OK() {
		faults = append(faults, fmt.Errorf("the promises are broken: %v", report))
	}
	if report.Duplicated > uint64(res.allowed) {
		faults = append(faults,
			fmt.Errorf("%d duplicates, of which at most %d were in flight at the faults", report.Duplicated, res.allowed))
	}
	if res.truth.Committed < enough {
		faults = append(faults, fmt.Errorf("only %d messages were committed: the run had no load", res.truth.Committed))
	}
	if report.DeadLettered != uint64(res.truth.Big) {
		faults = append(faults, fmt.Errorf("%d dead letters, but %d messages are too large", report.DeadLettered, res.truth.Big))
	}
	if held > 0 {
		faults = append(faults, fmt.Errorf("%d messages are held after everything was delivered", held))
	}
	return errors.Join(faults...)
}

// readKept records with which messages the topic begins that replaced a deleted one.
func (r *run) readKept(ctx context.Context) error {
	if r.losses.Emptied.IsZero() {
		return nil
	}
	// Messages that were committed before the topic came back may still be in flight.
	r.losses.Kept = make(map[uint32]uint64)
	if err := r.idle(ctx); err != nil {
		return err
	}
	if !r.system.Ordered {
		return nil // a later message of a key may have been lost with the topic before an earlier one was sent
	}
	numbers := make(map[uint32][]uint64)
	err := rig.ReadAll(ctx, r.target, func(payload []byte) {
		if name, err := check.Decode(rig.Unwrap(payload)); err == nil {
			numbers[name.Key] = append(numbers[name.Key], name.Seq)
		}
	})
	for key, all := range numbers {
		r.losses.Kept[key] = rig.Begins(all)
	}
	return err
}

// idle waits until the cursor has not moved for a while, with no writer at work.
func (r *run) idle(ctx context.Context) error {
	var last int64
	since := time.Now()
	for deadline := time.Now().Add(drainWithin); time.Since(since) < 2*time.Second && time.Now().Before(deadline); {
		n, err := r.load.Delivered(ctx)
		if err != nil {
			return err
		}
		if n != last {
			last, since = n, time.Now()
		}
		if err := rig.Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// tearDown ends what the run has started and removes what it has created.
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

// note writes a line to the run's log.
func (r *run) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.story, "%8.3fs  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// restart starts a relay that has ended.
func restart(ctx context.Context, relay *rig.Relay) error {
	if err := relay.Start(); err != nil {
		return err
	}
	return relay.Up(ctx, flowWithin)
}
