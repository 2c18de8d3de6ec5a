package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/child"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Config configures the demo.
type Config struct {
	DatabaseURL string        // of a PostgreSQL to use. Default: one is started, and downloaded if there is none
	For         time.Duration // run through all faults in this time, at least MinFor. Default: run until it is ended
	JSON        bool          // write one object per line to Stdout instead of text
	Rate        int           // events per second, 1 to MaxRate. Default 500
	Keys        int           // orders, 1 to MaxKeys. Default 100
	Seed        uint64        // makes the choice of orders and roll-backs repeatable. Default: random

	// Relay is the command that runs a relay; the name of its settings file is appended. Default: "relay" of this
	// program.
	Relay []string

	// Stdin is where keys come from, Stdout where results go. If Stdout is a terminal, its last line is live. With
	// JSON, progress lines go to Stderr. Defaults: those of the process.
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
	var faults settings.Faults
	settings.Within(&faults, "--rate", &c.Rate, 500, 1, MaxRate)
	settings.Within(&faults, "--keys", &c.Keys, 100, 1, MaxKeys)
	faults.Need(c.For == 0 || c.For >= MinFor, "--for", "%v, all the faults need at least %v", c.For, MinFor)
	settings.Default(&c.Seed, rand.Uint64())
	settings.Default(&c.Stdin, os.Stdin)
	settings.Default[io.Writer](&c.Stdout, os.Stdout)
	settings.Default[io.Writer](&c.Stderr, os.Stderr)
	if c.Relay == nil {
		self, err := os.Executable()
		faults.Add("find this program, to run relays with it", err)
		c.Relay = []string{self, "relay"}
	}
	return c, faults.Err()
}

// longOrders is the number of orders used only for long transactions, which would make the writers of other orders
// wait.
const longOrders = 16

// ErrInterrupted means that the demo was ended before its verdict.
var ErrInterrupted = errors.New("interrupted before the verdict")

// ErrNotOK means that the verdict, already shown, is bad.
var ErrNotOK = errors.New("the verdict is not OK")

// Run runs the demo and leaves nothing behind, however it ends. It returns nil if nothing was lost, invented or out of
// order, ErrNotOK if something was, ErrInterrupted if ctx or a signal ended it before the verdict, and any other error
// if it couldn't run.
//
// Run handles SIGINT, SIGTERM and SIGHUP itself while it runs.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	d := &demo{cfg: cfg, fail: fail, pressed: make(chan byte, 8),
		first: make(chan struct{}), scripted: make(chan struct{}), wanted: make(chan struct{})}
	d.want = sync.OnceFunc(func() { close(d.wanted) })
	d.phase.Store(phaseStarting)
	d.lead.Store(lead{})
	d.out = newOutput(cfg, fail)
	defer d.watchSignals(ctx)()
	return d.run(ctx)
}

// demo is one run. Its parts, in the direction of the events: service, database, relays, broker, consumer.
type demo struct {
	cfg  Config
	out  *output
	fail func(error) // ends the demo; the first call counts

	folder  string
	service *service
	db      *database
	relays  *relays
	broker  *broker
	checker *check.Checker
	arrived *check.Destination
	faults  *faults
	rates   rates
	pressed chan byte // keys, and those of the buttons on the page

	phase     atomic.Value  // phase
	lead      atomic.Value  // lead
	firstLead sync.Once     // is told
	first     chan struct{} // closed at the first delivered event, when a run of a given length begins
	firstAt   time.Time     // valid after first
	scripted  chan struct{} // closed when a run of a given length is over
	wanted    chan struct{} // closed when the user wants the verdict
	want      func()        // closes wanted
	troubles  rate.Sometimes
	dead      []deadLetter // of the monitor

	writers sync.WaitGroup
	others  sync.WaitGroup
}

// run sets up, shows the demo until its end, judges, and takes down in reverse order.
func (d *demo) run(ctx context.Context) (err error) {
	var undo undo
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // instead of the many errors that follow from it
		}
		if errors.Is(err, context.Canceled) {
			err = ErrInterrupted
		}
		err = errors.Join(err, wrap("clean up", undo.do(context.WithoutCancel(ctx))))
	}()
	defer d.out.close()
	if !d.cfg.JSON {
		fmt.Fprintf(d.out.progress, "%s\n\n", intro)
	}
	if err := d.open(ctx, &undo); err != nil {
		return err
	}
	d.prepare()
	d.out.note("postgres", "PostgreSQL %s is ready: %s", d.db.version, d.db.note)
	d.out.note("broker", "%s is ready: %s", d.broker.name(), d.broker.address())
	undo.add(func(context.Context) error { return d.relays.stop(0) })
	if err := d.relays.start(); err != nil {
		return err
	}
	page, err := d.servePage(&undo)
	if err != nil {
		return err
	}
	d.out.note("console", "the page is at %s", page)

	work, stop := context.WithCancel(ctx)
	stopAll := func() {
		stop()
		d.writers.Wait()
		d.others.Wait()
	}
	defer stopAll()
	writing, stopWriting := context.WithCancel(work)
	defer stopWriting()
	d.begin(work, writing)
	if err := d.out.running(d.pressed); err != nil {
		return err
	}
	end, err := d.untilEnd(work)
	if err == nil && end != endNow {
		stopWriting()
		err = d.drain(work)
	}
	if err != nil {
		return err
	}
	stopAll() // the judged state must not change any more
	if end != endNow {
		if err := d.look(ctx); err != nil { // for the last dead letters
			return err
		}
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

// undo is the list of what has to be undone. Several goroutines may add to it.
type undo struct {
	mu  sync.Mutex
	all []func(context.Context) error
}

func (u *undo) add(do func(context.Context) error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all = append(u.all, do)
}

// do undoes everything, the last first.
func (u *undo) do(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, undo := range slices.Backward(u.all) {
		err = errors.Join(err, undo(ctx))
	}
	u.all = nil
	return err
}

// open starts the database and the broker at the same time. If one fails, it doesn't wait for the other.
func (d *demo) open(ctx context.Context, undo *undo) (err error) {
	// Only its owner may read it, because it has a database's address.
	if d.folder, err = child.Folder("", "pgoutbox-demo-", ""); err != nil {
		return err
	}
	undo.add(func(context.Context) error { return os.RemoveAll(d.folder) })
	opening, opened := errgroup.WithContext(ctx)
	opening.Go(func() (err error) {
		d.db, err = openDatabase(opened, undo, d.cfg.DatabaseURL, d.cfg.Keys+longOrders, d.out.progress)
		return err
	})
	opening.Go(func() (err error) {
		d.broker, err = startNATS(opened, undo, filepath.Join(d.folder, "nats"))
		return err
	})
	if err := opening.Wait(); err != nil {
		return err
	}
	// The servers in these folders also need a moment to end.
	unguard, err := child.OnDeath(`for i in 1 2 3 4 5; do sleep 1; rm -rf -- "$@" && break; done`, d.folder, d.db.folder)
	if err != nil {
		return err
	}
	undo.add(func(context.Context) error { unguard(); return nil })
	return nil
}

// prepare makes the parts that need no starting.
func (d *demo) prepare() {
	d.checker = check.New(check.Config{Destinations: []check.DestinationConfig{{Name: destination}}})
	d.arrived = d.checker.Destination(destination)
	d.faults = &faults{demo: d, ended: make(chan struct{})}
	d.service = &service{demo: d, book: newBook(d.cfg.Keys + longOrders), pace: rate.NewLimiter(0, 0)}
	d.service.setRate(d.cfg.Rate)
	d.relays = &relays{demo: d, quit: make(chan struct{})}
}

// begin starts the goroutines beside the loop.
func (d *demo) begin(work, writing context.Context) {
	d.spawn(func() {
		d.broker.consume(work, d.received)
	})
	d.spawn(func() { d.monitor(work) })
	d.rates.take(d.arrived.Counts(), time.Now()) // the first second's rates need a count before it
	for i := range writerCount {
		d.writers.Go(func() {
			defer d.onPanic()
			d.service.run(writing, d.cfg.Keys, rand.New(rand.NewPCG(d.cfg.Seed, uint64(i))))
		})
	}
	if d.cfg.For > 0 {
		d.spawn(func() { d.script(work, writing) })
	}
}

// script breaks everything once, in a run of a given length, which begins at the first event.
func (d *demo) script(work, writing context.Context) {
	select {
	case <-d.first:
	case <-writing.Done():
		return
	}
	performed := make(chan struct{})
	d.spawn(func() {
		defer close(performed)
		d.faults.perform(work, writing, d.cfg.For)
	})
	sleep(writing, time.Until(d.firstAt.Add(d.cfg.For)))
	select {
	case <-performed:
	case <-time.After(performPatience): // the verdict reports what is missing
	}
	close(d.scripted)
}

// spawn runs f in a goroutine; run waits for it.
func (d *demo) spawn(f func()) {
	d.others.Go(func() {
		defer d.onPanic()
		f()
	})
}

// onPanic restores the terminal before a panic ends the process.
func (d *demo) onPanic() {
	if r := recover(); r != nil {
		d.out.close()
		panic(r)
	}
}

// trouble reports an error of the database, no more often than a person can read.
func (d *demo) trouble(err error) {
	d.troubles.Do(func() { d.out.fault("database_error", "PostgreSQL: %v", err) })
}

// received is the consumer.
func (d *demo) received(payload []byte) {
	now := time.Now()
	id, err := d.arrived.Payload(payload)
	if err != nil {
		d.out.fault("corrupted", "%v", err)
		return
	}
	d.service.book.arrive(id, now, d.faults.calm.Load())
	if d.phase.CompareAndSwap(phaseStarting, phaseRunning) {
		d.out.note("first_delivered", "first event delivered %s after the start", duration(now.Sub(d.out.started)))
		d.firstAt = now
		close(d.first)
	}
}

// end is why the demo ends.
type end int

const (
	endNow    end = iota // the user doesn't want to wait for events in flight
	endDrain             // the user wants the verdict
	endScript            // everything has been broken
)

const (
	// firstPatience bounds the time to the first event.
	firstPatience = time.Minute
	// performPatience is the extra time for a run with all faults.
	performPatience = time.Minute
	// drainPatience bounds the time without any arrival while draining, drainLimit the whole drain.
	drainPatience = 30 * time.Second
	drainLimit    = 5 * time.Minute
	// readPatience bounds the time in which the consumer reads what the broker has.
	readPatience = 10 * time.Second
)

// intro explains what the user sees.
const intro = `An orders service changes rows and writes an event about each change, in one
transaction. Two relays deliver to the broker; a consumer checks every event.
Break something! Lost, phantom and out of order stay 0, whatever you do.`

// untilEnd shows what happens and obeys the keyboard, until the end.
func (d *demo) untilEnd(ctx context.Context) (end end, err error) {
	began := time.Now()
	err = d.show(ctx, func() bool {
		switch {
		case closed(d.wanted):
			end = endDrain
		case closed(d.scripted):
			end = endScript
		case !closed(d.first) && time.Since(began) > firstPatience:
			d.fail(fmt.Errorf("no event was delivered within %s; the relays' logs end with:\n%s",
				duration(firstPatience), d.relays.logs()))
		}
		return end != endNow
	})
	if errors.Is(err, ErrInterrupted) {
		return endNow, nil
	}
	return end, err
}

// drain ends the load, repairs what is broken and waits until every committed event has arrived or is a dead letter.
// The verdict reports events that don't arrive in time.
func (d *demo) drain(ctx context.Context) error {
	d.phase.Store(phaseDraining)
	d.out.note("drain", "no more load: %s events are under way", printed.Number(d.checker.Outstanding()))
	d.writers.Wait()
	d.faults.end()

	began := time.Now()
	progress, since := uint64(0), began
	err := d.show(ctx, func() bool {
		counts, now := d.arrived.Counts(), time.Now()
		switch settled := counts.Delivered + counts.DeadLettered; {
		case now.Sub(began) > drainLimit:
			d.out.fault("drain", "not drained after %s: giving up", duration(drainLimit))
			return true
		case !d.faults.over() || settled != progress:
			progress, since = settled, now
		case counts.Outstanding == 0:
			return true
		case now.Sub(since) > drainPatience:
			d.out.fault("drain", "nothing has arrived for %s, and %s events are missing: giving up",
				duration(drainPatience), printed.Number(counts.Outstanding))
			return true
		}
		return false
	})
	if err != nil {
		return err
	}
	// Relays that have ended can't send any more, so the broker has everything now.
	if err := d.relays.stop(15 * time.Second); err != nil {
		d.out.fault("relay_stop", "%v", err)
	}
	limited, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	return d.show(ctx, func() bool {
		up, err := d.broker.caughtUp(limited)
		if limited.Err() != nil {
			d.out.fault("drain", "the consumer has not seen all that the broker has")
		}
		return limited.Err() != nil || err == nil && up
	})
}

// show shows what happens and obeys the keyboard, until done. It returns ErrInterrupted for the key q.
func (d *demo) show(ctx context.Context, done func() bool) error {
	samples := time.NewTicker(d.out.interval())
	defer samples.Stop()
	looks := time.NewTicker(20 * time.Millisecond)
	defer looks.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-looks.C:
			if done() {
				return nil
			}
			continue
		case <-samples.C:
		case key := <-d.pressed:
			switch key {
			case 'q', ctrlC:
				return ErrInterrupted
			case 'd':
				d.want()
			case '?', 'h':
				fmt.Fprint(d.out, help(d.out.style))
			default:
				d.faults.press(ctx, key)
			}
		}
		d.out.sample(d.sample())
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
