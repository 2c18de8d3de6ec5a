package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

// faults breaks things, and tells how it went.
type faults struct {
	demo *demo
	// quiet is false from a fault to the moment when its backlog has been delivered.
	quiet atomic.Bool

	mu      sync.Mutex
	results []*result

	down     *outage // nil while the broker is up
	changing bool    // the broker is being taken down or brought up
	ending   bool    // nothing more is broken
	leader   string
	epoch    int64
	killed   *killing // nil unless a takeover is awaited
	bursts   []*burst
	poisons  map[check.ID]*result
	longs    []*long
	longKey  int
}

// result is what came of a fault.
type result struct {
	Fault   string `json:"fault"` // broker, kill, long, rollbacks, poison
	What    string `json:"what"`
	Outcome string `json:"outcome"`
	Done    bool   `json:"done"` // it has run its course

	// wentOn is true for a poison message whose order has gone on.
	wentOn bool
}

type outage struct {
	result *result
	since  time.Time
}

type killing struct {
	result *result
	name   string
	epoch  int64
	at     time.Time
}

type burst struct {
	result *result
	size   int
}

type long struct {
	since time.Time
	end   context.CancelFunc // ends it early
}

func (f *faults) calm() bool { return f.quiet.Load() }

// add records a fault that begins. The caller holds the lock.
func (f *faults) add(fault, what string) *result {
	r := &result{Fault: fault, What: what}
	f.results = append(f.results, r)
	return r
}

// press does what a key stands for.
func (f *faults) press(ctx context.Context, key byte) {
	d := f.demo
	switch key {
	case 'b':
		d.spawn(func() { f.toggleBroker(ctx) })
	case 'k':
		d.spawn(func() { f.killLeader() })
	case 'l':
		d.spawn(func() { f.longTransaction(ctx, 10*time.Second) })
	case 'r':
		f.rollBack(max(50, d.service.pace.get()))
	case 'p':
		d.spawn(func() { f.poison(ctx) })
	case '+', '=':
		f.load(min(MaxRate, d.service.pace.get()*2))
	case '-':
		f.load(max(1, d.service.pace.get()/2))
	}
}

func (f *faults) load(rate int) {
	if rate != f.demo.service.pace.get() {
		f.demo.service.pace.set(rate)
		f.demo.story.add("load", "load: "+number(rate)+" events a second")
	}
}

// perform breaks everything once, in a fixed order, spread over a run of that length. What one fault has broken is whole
// before the next but one, so that each shows by itself; a run that is too short for that becomes longer. It returns early
// when ctx ends.
func (f *faults) perform(ctx context.Context, length time.Duration) {
	d := f.demo
	started := time.Now()
	part := func(share float64) time.Duration { return time.Duration(share * float64(length)) }
	for _, step := range []struct {
		at    float64     // share of the length
		ready func() bool // what it waits for besides
		do    func()
	}{
		{0.05, nil, func() { f.rollBack(max(10, int(part(0.04).Seconds()*float64(d.service.pace.get())))) }},
		{0.10, nil, func() { f.poison(ctx) }},
		{0.17, f.led, f.killLeader},
		{0.62, f.calm, func() { f.longTransaction(ctx, min(part(0.14), 10*time.Second)) }},
		{0.80, f.calm, f.takeBrokerDown},
		{0.90, nil, func() { f.bringBrokerUp(ctx) }},
	} {
		if !sleep(ctx, time.Until(started.Add(part(step.at)))) {
			return
		}
		for step.ready != nil && !step.ready() {
			if !sleep(ctx, 20*time.Millisecond) {
				return
			}
		}
		step.do()
	}
	close(d.performed)
}

// sleep returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(max(0, d))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// led tells whether a relay leads.
func (f *faults) led() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leader != "" && f.killed == nil
}

// brokerUp tells whether relays can reach the broker.
func (f *faults) brokerUp() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.down == nil
}

func (f *faults) toggleBroker(ctx context.Context) {
	if f.brokerUp() {
		f.takeBrokerDown()
	} else {
		f.bringBrokerUp(ctx)
	}
}

func (f *faults) takeBrokerDown() {
	if !f.changeBroker(true) {
		return
	}
	defer f.brokerChanged()
	f.quiet.Store(false)
	f.mu.Lock()
	f.down = &outage{result: f.add("broker", "broker down"), since: time.Now()}
	f.mu.Unlock()
	f.demo.story.add("broker_down", "broker down: commits go on, their events wait in PostgreSQL")
	if err := f.demo.broker.takeDown(); err != nil {
		f.demo.fail(fmt.Errorf("take the broker down: %w", err))
	}
}

func (f *faults) bringBrokerUp(ctx context.Context) {
	if !f.changeBroker(false) {
		return
	}
	defer f.brokerChanged()
	waiting := f.demo.checker.Outstanding()
	if err := f.demo.broker.bringUp(ctx); err != nil {
		if ctx.Err() == nil {
			f.demo.fail(fmt.Errorf("bring the broker up again: %w", err))
		}
		return
	}
	f.mu.Lock()
	o := f.down
	f.down = nil
	took := time.Since(o.since)
	o.result.What = "broker down for " + duration(took)
	o.result.Outcome = number(waiting) + " events waited in PostgreSQL meanwhile"
	o.result.Done = true
	f.mu.Unlock()
	f.demo.story.add("broker_up", fmt.Sprintf("broker up again after %s: %s events have waited", duration(took), number(waiting)))
}

// changeBroker makes sure that one at a time does something to the broker, and that there is something to do.
func (f *faults) changeBroker(down bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changing || down != (f.down == nil) || down && f.ending {
		return false
	}
	f.changing = true
	return true
}

func (f *faults) brokerChanged() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changing = false
}

// killLeader sends SIGKILL to the relay that leads.
func (f *faults) killLeader() {
	f.mu.Lock()
	name, epoch := f.leader, f.epoch
	waiting := f.killed != nil
	f.mu.Unlock()
	if name == "" || waiting {
		f.demo.story.add("note", "no relay leads at the moment: nothing to kill")
		return
	}
	f.quiet.Store(false)
	at := time.Now()
	pid, err := f.demo.relays.kill(name)
	if err != nil {
		f.demo.fail(fmt.Errorf("kill %s: %w", name, err))
		return
	}
	if pid == 0 {
		f.demo.story.add("note", name+" isn't running: nothing to kill")
		return
	}
	f.mu.Lock()
	f.killed = &killing{result: f.add("kill", fmt.Sprintf("%s killed (SIGKILL)", name)), name: name, epoch: epoch, at: at}
	f.mu.Unlock()
	f.demo.story.add("relay_killed", fmt.Sprintf("%s killed (SIGKILL, process %d): its lease must run out first", name, pid))
}

// leads is told who leads, and under which epoch.
func (f *faults) leads(name string, epoch int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := f.leader == ""
	f.leader, f.epoch = name, epoch
	if first {
		f.demo.story.add("leader", name+" has the lease and delivers, the other one stands by")
		return
	}
	k := f.killed
	if k == nil || epoch == k.epoch {
		return
	}
	took := time.Since(k.at)
	f.killed = nil
	verb := "took over"
	if name == k.name {
		verb = "came back and went on"
	}
	k.result.Outcome = fmt.Sprintf("%s %s after %s", name, verb, duration(took))
	k.result.Done = true
	f.demo.story.add("takeover", fmt.Sprintf("%s; %s events have waited", k.result.Outcome, number(f.demo.checker.Outstanding())))
}

// rollBack has the next n transactions roll back.
func (f *faults) rollBack(n int) {
	f.mu.Lock()
	f.bursts = append(f.bursts, &burst{result: f.add("rollbacks", plural(n, "transaction")+" rolled back"), size: n})
	f.mu.Unlock()
	f.demo.service.rollbacks.Add(int64(n))
	f.demo.story.add("rollbacks", fmt.Sprintf("the next %s write their event and roll back: none may arrive", plural(n, "transaction")))
}

// poison writes an event that the broker refuses.
func (f *faults) poison(ctx context.Context) {
	const key = 0 // the busiest order, so that what follows is soon seen
	f.mu.Lock()
	r := f.add("poison", fmt.Sprintf("poison message of %d KiB", poisonSize>>10))
	f.mu.Unlock()
	id, err := f.demo.service.change(ctx, key, change{size: poisonSize, poison: true, begun: func(id check.ID) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.poisons == nil {
			f.poisons = make(map[check.ID]*result)
		}
		f.poisons[id] = r
	}})
	if err != nil {
		f.demo.trouble(err)
		return
	}
	f.demo.story.add("poison", fmt.Sprintf("poison: %s has an event of %d KiB, the broker takes %d", orderName(key), poisonSize>>10, maxMessage>>10))
	f.demo.service.book.await(id, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		r.wentOn = true
		f.goesOn(r, orderName(key))
	})
}

// died is told of a dead letter, and returns whether it is a poison message.
func (f *faults) died(id check.ID, letter deadLetter) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.poisons[id]
	if r == nil {
		return false
	}
	r.Outcome = "dead letter (" + letter.Reason + ")"
	r.Done = true
	defer f.goesOn(r, letter.Order)
	f.demo.story.add("dead_letter", fmt.Sprintf("the poison of %s is a dead letter (%s): %s", letter.Order, letter.Reason, letter.Error))
	return true
}

// goesOn tells that the order of a poison message has gone on, when both are known: the event behind it may be seen before
// the dead letter is. The caller holds the lock.
func (f *faults) goesOn(r *result, order string) {
	if r.Done && r.wentOn {
		r.Outcome += ", " + order + " went on"
		f.demo.story.add("order_goes_on", order+" goes on: its next event has arrived")
	}
}

// longTransaction writes an event and leaves its transaction open.
func (f *faults) longTransaction(ctx context.Context, length time.Duration) {
	d := f.demo
	ctx, end := context.WithCancel(ctx)
	defer end()
	l := &long{since: time.Now(), end: end}
	f.mu.Lock()
	if f.ending {
		f.mu.Unlock()
		return
	}
	if len(f.longs) == longKeys {
		f.mu.Unlock()
		d.story.add("note", "enough long transactions are open")
		return
	}
	f.longs = append(f.longs, l)
	// An order of its own: another one's writers would wait for it.
	key := uint32(d.cfg.Keys + f.longKey%longKeys)
	f.longKey++
	r := f.add("long", "long transaction, "+duration(length))
	f.mu.Unlock()
	d.story.add("long_begin", fmt.Sprintf("a transaction has written its event and stays open for %s: others must not wait for it", duration(length)))

	before := d.arrived.Counts().Delivered
	var took time.Duration
	var meanwhile uint64
	_, err := d.service.change(ctx, key, change{
		size: payloadSize,
		hold: func() {
			sleep(ctx, length)
			took, meanwhile = time.Since(l.since), d.arrived.Counts().Delivered-before
		},
		arrived: func(delay time.Duration) {
			f.mu.Lock()
			r.What = "long transaction, " + duration(took)
			r.Outcome = fmt.Sprintf("%s delivered meanwhile, itself after %s", number(meanwhile), duration(delay))
			r.Done = true
			f.mu.Unlock()
			d.story.add("long_end", fmt.Sprintf("the long transaction has committed after %s, its event came %s later; meanwhile %s others were delivered",
				duration(took), duration(delay), number(meanwhile)))
		},
	})
	f.mu.Lock()
	f.longs = slices.DeleteFunc(f.longs, func(open *long) bool { return open == l })
	f.mu.Unlock()
	if err != nil {
		d.trouble(err)
	}
}

// longFor returns how long the oldest of the long transactions has been open, 0 if there is none.
func (f *faults) longFor(now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.longs) == 0 {
		return 0
	}
	return now.Sub(f.longs[0].since)
}

// settle is told now and then how many events are under way.
func (f *faults) settle(outstanding uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	backlog := uint64(max(20, f.demo.service.pace.get()/5))
	started := f.demo.phase.Load() != phaseStarting
	f.quiet.Store(started && f.down == nil && f.killed == nil && outstanding < backlog)
	for _, b := range f.bursts {
		if !b.result.Done && f.demo.service.rollbacks.Load() <= 0 {
			b.result.Done = true
			b.result.Outcome = "none of their events was delivered"
			f.demo.story.add("rollbacks_done", fmt.Sprintf("%s rolled back, phantom %d", plural(b.size, "transaction"), f.demo.arrived.Counts().Phantom))
		}
	}
}

// finish undoes what is still broken when the load has ended: long transactions end, and the broker comes back.
func (f *faults) finish(ctx context.Context) {
	f.mu.Lock()
	f.ending = true
	for _, l := range f.longs {
		l.end()
	}
	f.mu.Unlock()
	for ctx.Err() == nil {
		f.bringBrokerUp(ctx) // it does nothing while the broker is just being taken down
		if f.brokerUp() {
			return
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

// over tells whether nothing is broken any more.
func (f *faults) over() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.down == nil && !f.changing && len(f.longs) == 0
}

// all returns what has been done and what came of it.
func (f *faults) all() []result {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []result
	for _, r := range f.results {
		all = append(all, *r)
	}
	return all
}

// missingPoisons counts the poison messages that are no dead letters.
func (f *faults) missingPoisons() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, r := range f.poisons {
		if !r.Done {
			n++
		}
	}
	return n
}
