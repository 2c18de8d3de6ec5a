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

	*rig.History // nil until it is set up
	database     string
	topic        string
	extra        int // duplicates explained by a promotion, in addition to messages in flight

	mu    sync.Mutex
	began time.Time
	story *os.File

	background sync.WaitGroup
	cleanup    []func()
}

// result is the result of a run.
type result struct {
	seed     uint64
	system   string
	relays   int
	promised bool // the order of keys
	broker   string
	groups   int // shard groups
	faults   []injected
	rig.Verdict
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
	r := &run{seed: seed, site: s, binary: binary, dir: dir, rng: rng, began: time.Now()}
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
	if _, err := r.flows(ctx, flowWithin); err != nil {
		res.err = fmt.Errorf("before any fault: %w", err)
		return res
	}
	for _, f := range r.faults {
		r.Faults = append(r.Faults, func(ctx context.Context) error {
			recovery, err := r.inject(ctx, f)
			res.faults = append(res.faults, injected{f.kind, f.repeats, recovery})
			res.allowed += f.repeats * r.system.repeats() * r.groups
			if err != nil {
				err = fmt.Errorf("%s: %w", f.kind, err)
			}
			return err
		})
	}
	verdict, err := r.Run(ctx)
	if err != nil {
		res.err = err
		return res
	}
	res.Verdict = verdict
	res.allowed += r.extra
	res.err = verdict.Broken(rig.Promise{Ordered: res.promised, Repeats: uint64(res.allowed)})
	if verdict.Truth.Committed < enough {
		res.err = errors.Join(res.err, fmt.Errorf("only %d messages were committed: the run had no load", verdict.Truth.Committed))
	}
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
	var target rig.Target = rig.NATSTopic{URL: r.site.nats.URL(), Topic: r.topic}
	if r.broker == "kafka" {
		target = rig.KafkaTopic{Addr: r.site.kafka.Addr(), Topic: r.topic, ExactlyOnce: r.system.exactlyOnce}
	}
	oversize := 0
	if slices.ContainsFunc(r.faults, func(f fault) bool { return f.kind == oversizeMessages }) {
		oversize = 50
	}
	_, proxy := r.brokerServer()
	var configs []string
	for i := range r.number {
		configs = append(configs, fmt.Sprintf(`name: %s
database: {url: %q}
http: {listen: ""}
retention: {interval: 1s}
destinations:
  - name: %s
    broker: %s
    lease: %s
    shard_groups: %d
%s    delivery: {max_in_flight: %d, batch: %d, backoff: {initial: 20ms}}
`, rig.RelayName(i), r.site.relayURL(r.database, i == 1 && !r.system.Log), r.topic, target.YAML(proxy.Addr()), lease, r.groups,
			r.system.Destination(r.database, "    "), maxInFlight, maxInFlight/4))
	}
	r.History, err = rig.Scenario{
		Workload: rig.LoadConfig{URL: r.site.writerURL(r.database, r.pooled),
			Direct: r.site.pg.URL(r.database), Topic: r.topic, Keys: keys, Writers: 3, Pause: 2 * time.Millisecond,
			Seed: r.seed, Big: rig.MaxMessage + 50_000, BigOneIn: oversize, Dies: 20, Table: r.system.Load()},
		Target: target, Binary: r.binary, Dir: r.dir, Configs: configs, Until: r.endWriting,
		Starts: flowWithin, Within: drainWithin,
	}.Open(ctx)
	if err != nil {
		return err
	}
	return r.Start(ctx)
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
	took, err := r.Load.Flows(ctx, within)
	if err == nil || ctx.Err() != nil {
		return took, err
	}
	for _, relay := range r.Relays {
		if !relay.Running() {
			err = fmt.Errorf("%w\nrelay %s does not run; its log ends with:\n%s", err, relay.Name, relay.Log())
		}
	}
	return took, err
}

// owner waits for a relay that holds the lease, or some of the leases, and returns it.
func (r *run) owner(ctx context.Context) (owner *rig.Relay, err error) {
	err = rig.Until(ctx, flowWithin, 5*time.Millisecond, "somebody has the lease", func() (bool, error) {
		name, err := r.Load.Owner(ctx)
		if i := slices.IndexFunc(r.Relays, func(relay *rig.Relay) bool { return relay.Name == name }); err == nil && i >= 0 {
			owner = r.Relays[i]
		}
		return owner != nil, nil
	})
	return owner, err
}

// endWriting ends the writers.
func (r *run) endWriting(ctx context.Context) error {
	err := rig.Until(ctx, 10*time.Second, 20*time.Millisecond, "there is a load", func() (bool, error) {
		return r.Load.Committed() >= enough, nil
	})
	if err != nil && !errors.Is(err, rig.ErrInVain) { // else the verdict says it
		return err
	}
	r.background.Wait()
	r.Load.Stop()
	r.note("the writers have stopped")
	return r.readKept(ctx)
}

// readKept records with which messages the topic begins that replaced a deleted one.
func (r *run) readKept(ctx context.Context) error {
	if r.Losses.Emptied.IsZero() {
		return nil
	}
	// Messages that were committed before the topic came back may still be in flight.
	r.Losses.Kept = make(map[uint32]uint64)
	if err := r.idle(ctx); err != nil {
		return err
	}
	if !r.system.Ordered {
		return nil // a later message of a key may have been lost with the topic before an earlier one was sent
	}
	numbers := make(map[uint32][]uint64)
	err := rig.ReadAll(ctx, r.Target, func(payload []byte) {
		if name, err := check.Decode(rig.Unwrap(payload)); err == nil {
			numbers[name.Key] = append(numbers[name.Key], name.Seq)
		}
	})
	for key, all := range numbers {
		r.Losses.Kept[key] = rig.Begins(all)
	}
	return err
}

// idle waits until the cursor has not moved for a while, with no writer at work.
func (r *run) idle(ctx context.Context) error {
	var last int64
	since := time.Now()
	err := rig.Until(ctx, drainWithin, 20*time.Millisecond, "the cursor rests", func() (bool, error) {
		n, err := r.Load.Delivered(ctx)
		if n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) >= 2*time.Second, err
	})
	if errors.Is(err, rig.ErrInVain) {
		return nil
	}
	return err
}

// tearDown ends what the run has started and removes what it has created.
func (r *run) tearDown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, undo := range slices.Backward(r.cleanup) {
		undo()
	}
	var errs []error
	if r.History != nil {
		errs = append(errs, r.Close())
		r.background.Wait()
	}
	errs = append(errs, r.site.heal(ctx))
	if r.History != nil {
		errs = append(errs, r.Target.Delete(ctx))
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
