package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

// Config says what kind of demo is wanted.
type Config struct {
	// DatabaseURL names a PostgreSQL to use. Default: one is started, and downloaded if there is none.
	DatabaseURL string

	// Kafka is the address of a Kafka to deliver to: host:port, several with commas. Default: a NATS server with
	// JetStream inside this process.
	Kafka string

	// For runs through all faults by itself in that time and ends with the verdict. At least MinFor. Default: the demo
	// runs until somebody ends it.
	For time.Duration

	// JSON writes an object a line to Stdout instead of text.
	JSON bool

	// Rate is how many events are written a second, 1 to MaxRate. Default 500.
	Rate int

	// Keys is how many orders there are, 1 to MaxKeys. Default 100.
	Keys int

	// Seed makes the choice of orders and roll-backs repeatable. Default: another one each time.
	Seed uint64

	// Relay is the command that runs a relay; a file with its settings is added to it. Default: "relay" of this program.
	Relay []string

	// Stdin and Stdout are where keys come from and results go to. When Stdout is a terminal, the demo draws on it. Stderr
	// gets lines of progress when Stdout gets JSON. Defaults: those of the process.
	Stdin  *os.File
	Stdout io.Writer
	Stderr io.Writer
}

// Limits of Config.
const (
	MinFor  = 8 * time.Second
	MaxRate = 20_000
	MaxKeys = 100_000
)

func (c Config) withDefaults() (Config, error) {
	if c.Rate == 0 {
		c.Rate = 500
	}
	if c.Keys == 0 {
		c.Keys = 100
	}
	if c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	if c.Stdin == nil {
		c.Stdin = os.Stdin
	}
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	var faults []error
	if c.Relay == nil {
		self, err := os.Executable()
		if err != nil {
			faults = append(faults, fmt.Errorf("find this program, to run relays with it: %w", err))
		}
		c.Relay = []string{self, "relay"}
	}
	if c.For != 0 && c.For < MinFor {
		faults = append(faults, fmt.Errorf("--for is %v: all the faults need at least %v", c.For, MinFor))
	}
	if c.Rate < 1 || c.Rate > MaxRate {
		faults = append(faults, fmt.Errorf("--rate is %d: it must be 1 to %d events a second", c.Rate, MaxRate))
	}
	if c.Keys < 1 || c.Keys > MaxKeys {
		faults = append(faults, fmt.Errorf("--keys is %d: it must be 1 to %d", c.Keys, MaxKeys))
	}
	return c, errors.Join(faults...)
}

// longKeys are orders of their own for long transactions, which would keep the writers of other orders waiting.
const longKeys = 16

// ErrInterrupted is the end of a demo that was told to end before its verdict.
var ErrInterrupted = errors.New("interrupted before the verdict")

// ErrNotOK is the end of a demo whose verdict, already shown, is bad.
var ErrNotOK = errors.New("the verdict is not OK")

// Run runs the demo and leaves nothing behind, whatever ends it. It returns nil when nothing was lost, invented or out of
// order, ErrNotOK when something was, ErrInterrupted when ctx or a signal ended it before it could tell, and any other
// error when it couldn't run.
//
// Run handles SIGINT, SIGTERM and SIGHUP itself while it runs.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	ctx, signals := watchSignals(ctx, cfg.For == 0)
	defer signals.stop()

	d := &demo{
		cfg:       cfg,
		signals:   signals,
		latency:   newLatency(),
		failed:    make(chan error, 1),
		first:     make(chan struct{}),
		performed: make(chan struct{}),
	}
	d.story.started = time.Now()
	d.out = newOutput(cfg, d.fail)
	d.story.tell = d.out.event
	return d.run(ctx)
}

// demo is one run. Its parts, in the direction in which events go: service, database, relays, broker, consumer.
type demo struct {
	cfg     Config
	signals *signals
	out     output
	story   story
	latency *latency

	folder  string
	db      *database
	broker  broker
	service *service
	relays  *relays
	checker *check.Checker
	arrived *check.Destination
	faults  *faults
	sampler sampler

	phase     atomic.Value // phase
	leader    atomic.Value // string: the name of the relay that leads, "" while none does
	dead      deadLetters
	failed    chan error    // why the demo can't go on
	first     chan struct{} // closed when the first event has been delivered: a run of a given length begins
	ends      time.Time     // of that run; only the loop knows
	performed chan struct{} // closed when it has broken everything
	help      bool          // is shown; only the loop knows
	troubles  throttle

	stopWriters context.CancelFunc
	writers     sync.WaitGroup
	others      sync.WaitGroup
}

// run sets up, shows until the end, and takes down in the opposite order.
func (d *demo) run(ctx context.Context) (err error) {
	d.phase.Store(phaseStarting)
	d.leader.Store("")
	defer d.out.close()
	if !d.cfg.JSON {
		fmt.Fprintf(d.out.progress(), "%s\n\n", strings.Join(intro[:], "\n"))
	}

	// What is set up here is taken down by the deferred calls, in the opposite order, also when the setting up fails.
	var cleanup []func() error
	defer func() {
		for i := len(cleanup) - 1; i >= 0; i-- {
			if cleanupErr := cleanup[i](); cleanupErr != nil {
				err = errors.Join(err, fmt.Errorf("clean up: %w", cleanupErr))
			}
		}
	}()
	if d.folder, err = newFolder(); err != nil {
		return err
	}
	cleanup = append(cleanup, func() error { return os.RemoveAll(d.folder) })

	if err := d.open(ctx); err != nil {
		return d.unlessInterrupted(ctx, err)
	}
	cleanup = append(cleanup, func() error { return d.db.close(context.WithoutCancel(ctx)) }, d.broker.close)
	unguard, err := removeOnDeath(d.folders()...)
	if err != nil {
		return err
	}
	cleanup = append(cleanup, func() error { unguard(); return nil })

	work, cancel := context.WithCancel(ctx)
	cleanup = append(cleanup, func() error {
		cancel()
		d.writers.Wait()
		d.others.Wait()
		return nil
	})
	d.prepare()
	d.story.add("postgres", "PostgreSQL "+d.db.version+" is ready: "+d.db.note)
	d.story.add("broker", d.broker.describe()+" is ready: "+d.broker.address())
	cleanup = append(cleanup, func() error {
		hurry, cancel := context.WithCancel(context.Background())
		cancel()
		return d.relays.stop(hurry)
	})
	if err := startRelays(d.relays, d.folder, d.db.url, d.broker); err != nil {
		return err
	}
	d.begin(work)
	if err := d.out.running(); err != nil {
		return err
	}

	end, err := d.loop(ctx)
	if err == nil && end != endNow {
		err = d.drain(ctx)
	}
	if err != nil {
		return d.unlessInterrupted(ctx, err)
	}
	verdict := d.verdict(end)
	d.out.close()
	if err := d.out.verdict(verdict); err != nil {
		return err
	}
	if !verdict.OK {
		return ErrNotOK
	}
	return nil
}

// unlessInterrupted replaces the many errors that follow an interruption.
func (d *demo) unlessInterrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	return err
}

// open starts the database and the broker, at the same time. When one fails, the other isn't waited for.
func (d *demo) open(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var opening sync.WaitGroup
	opening.Go(func() {
		defer d.onPanic()
		db, err := openDatabase(ctx, d.cfg.DatabaseURL, d.cfg.Keys+longKeys, d.out.progress())
		if err != nil {
			fail(err)
			return
		}
		d.db = db
	})
	opening.Go(func() {
		defer d.onPanic()
		b, err := d.openBroker(ctx)
		if err != nil {
			fail(err)
			return
		}
		d.broker = b
	})
	opening.Wait()
	err := context.Cause(ctx)
	if err == nil {
		return nil
	}
	if d.db != nil {
		err = errors.Join(err, d.db.close(context.WithoutCancel(ctx)))
	}
	if d.broker != nil {
		err = errors.Join(err, d.broker.close())
	}
	return err
}

func (d *demo) openBroker(ctx context.Context) (broker, error) {
	if d.cfg.Kafka != "" {
		return openKafka(ctx, d.cfg.Kafka)
	}
	return startNATS(ctx, filepath.Join(d.folder, "nats"))
}

// folders are what must go when this process is killed.
func (d *demo) folders() []string {
	all := []string{d.folder}
	if d.db.folder != "" {
		all = append(all, d.db.folder)
	}
	return all
}

// prepare makes the parts that need no starting.
func (d *demo) prepare() {
	d.checker = check.New(check.Config{Destinations: []check.DestinationConfig{{Name: destination}}})
	d.arrived = d.checker.Destination(destination)
	d.service = &service{
		pool:    d.db.pool,
		checker: d.checker,
		topic:   d.broker.topic(),
		book:    newBook(d.cfg.Keys + longKeys),
		trouble: d.trouble,
	}
	d.service.pace.set(d.cfg.Rate)
	d.relays = &relays{command: d.cfg.Relay, story: &d.story, failed: d.fail}
	d.faults = &faults{demo: d}
	d.service.calm = d.faults.calm
}

// begin starts what runs beside the loop.
func (d *demo) begin(ctx context.Context) {
	d.spawn(func() {
		if err := d.broker.consume(ctx, d.received); err != nil {
			d.fail(fmt.Errorf("consume: %w", err))
		}
	})
	d.spawn(func() { d.monitor(ctx) })

	d.sampler.take(d.arrived.Counts(), time.Now()) // the rates of the first second need a count before it
	writing, stop := context.WithCancel(ctx)
	d.stopWriters = stop
	for i := range writerCount {
		d.writers.Go(func() {
			defer d.onPanic()
			d.service.run(writing, d.cfg.Keys, rand.New(rand.NewPCG(d.cfg.Seed, uint64(i))))
		})
	}
	if d.cfg.For > 0 {
		d.spawn(func() {
			select {
			case <-d.first:
				d.faults.perform(writing, d.cfg.For)
			case <-writing.Done():
			}
		})
	}
}

// spawn runs f beside the loop; run waits for it.
func (d *demo) spawn(f func()) {
	d.others.Go(func() {
		defer d.onPanic()
		f()
	})
}

// onPanic gives the terminal back before a panic ends the process.
func (d *demo) onPanic() {
	if r := recover(); r != nil {
		d.out.close()
		panic(r)
	}
}

// fail ends the demo.
func (d *demo) fail(err error) {
	select {
	case d.failed <- err:
	default: // an earlier reason stands
	}
}

// trouble reports an error of the database, not more often than a person can read.
func (d *demo) trouble(err error) {
	if d.troubles.allow(time.Second) {
		d.story.fault("database_error", "PostgreSQL: "+err.Error())
	}
}

// throttle lets something happen now and then.
type throttle struct {
	mu   sync.Mutex
	last time.Time
}

func (t *throttle) allow(pause time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Sub(t.last) < pause {
		return false
	}
	t.last = now
	return true
}

// received is the consumer.
func (d *demo) received(payload []byte) {
	now := time.Now()
	id, err := d.arrived.Payload(payload)
	if err != nil {
		d.story.fault("corrupted", err.Error())
		return
	}
	departure, found := d.service.book.arrive(id)
	if found {
		took := now.Sub(departure.at)
		d.latency.record(took, departure.calm && d.faults.calm())
		if departure.arrived != nil {
			departure.arrived(took)
		}
	}
	if d.phase.CompareAndSwap(phaseStarting, phaseRunning) {
		d.story.add("first_delivered", "first event delivered "+duration(now.Sub(d.story.started))+" after the start")
		close(d.first)
	}
}

// end is how the loop ended.
type end int

const (
	endNow    end = iota // without waiting for what is under way
	endDrain             // with a verdict
	endScript            // with a verdict, after all the faults
)

// firstPatience is how long the first event may take.
const firstPatience = time.Minute

// performPatience is how much longer than it should a run with all the faults may take.
const performPatience = time.Minute

// loop shows what happens and does what the keyboard says, until the end.
func (d *demo) loop(ctx context.Context) (end, error) {
	frames := time.NewTicker(d.out.interval())
	defer frames.Stop()
	first := d.first
	var performed <-chan struct{} // once the time is over
	over := time.NewTimer(firstPatience)
	defer over.Stop()
	for {
		select {
		case <-ctx.Done():
			return endNow, ctx.Err()
		case err := <-d.failed:
			return endNow, err
		case <-first:
			first = nil
			over.Stop()
			if d.cfg.For > 0 {
				d.ends = time.Now().Add(d.cfg.For)
				over.Reset(d.cfg.For)
			}
		case <-over.C:
			switch {
			case first != nil:
				return endNow, fmt.Errorf("no event was delivered within %s; the relays' logs end with:\n%s", duration(firstPatience), d.relays.logs())
			case performed != nil:
				return endScript, nil // the verdict will say what is missing
			}
			performed = d.performed
			over.Reset(performPatience)
		case <-performed:
			return endScript, nil
		case <-d.signals.drain:
			return endDrain, nil
		case <-frames.C:
			d.show()
		case key := <-d.out.keys():
			switch key {
			case 'd':
				return endDrain, nil
			case 'q', ctrlC:
				return endNow, nil
			case '?', 'h':
				d.help = !d.help
			default:
				d.faults.press(ctx, key)
			}
			d.show()
		}
	}
}

// show shows what is to be seen now.
func (d *demo) show() {
	// Frames come at parts of a second; the last of a second may come a little early.
	if now := time.Now(); d.sampler.due(now) {
		d.latency.turn()
		d.sampler.take(d.arrived.Counts(), now)
	}
	d.out.sample(d.view())
}

// sampler makes rates from counts, once a second. Only one goroutine uses it.
type sampler struct {
	at       time.Time
	previous check.Counts
	in, out  rate
}

const history = 240 // seconds

func (s *sampler) due(now time.Time) bool { return now.Sub(s.at) > 950*time.Millisecond }

func (s *sampler) take(now check.Counts, at time.Time) {
	if !s.at.IsZero() {
		took := at.Sub(s.at).Seconds()
		s.in.add(float64(now.Committed-s.previous.Committed) / took)
		s.out.add(float64(now.Delivered-s.previous.Delivered) / took)
	}
	s.at, s.previous = at, now
}

func (r *rate) add(perSecond float64) {
	r.Now = int(perSecond + 0.5)
	r.History = append(r.History, r.Now)
	if len(r.History) > history {
		r.History = append(r.History[:0], r.History[1:]...)
	}
}

// view is what is to be seen now.
func (d *demo) view() *view {
	now := time.Now()
	v := &view{
		Elapsed:  now.Sub(d.story.started),
		Phase:    d.phase.Load().(phase),
		Postgres: "PostgreSQL " + d.db.version,
		Broker:   d.broker.describe(),
		Address:  d.broker.address(),
		BrokerUp: d.faults.brokerUp(),
		Wanted:   d.service.pace.get(),
		Counts:   d.arrived.Counts(),
		Lost:     d.service.book.overtaken(now, 2*time.Second),
		Latency:  d.latency.last(),
		Long:     d.faults.longFor(now),
		Events:   d.story.latest(),
		Help:     d.help,
	}
	if !d.ends.IsZero() {
		v.Left = max(0, d.ends.Sub(now))
	}
	v.In, v.Out = d.sampler.in, d.sampler.out
	leader := d.leader.Load().(string)
	for _, r := range d.relays.states() {
		shown := relayView{Name: r.Name, PID: r.PID, Role: standby}
		switch {
		case r.PID == 0:
			shown.Role = down
		case r.Name == leader:
			shown.Role = leads
		}
		v.Relays = append(v.Relays, shown)
	}
	return v
}
