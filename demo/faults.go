package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgoutbox/outbox/internal/printed"
)

// faultTable lists the faults. Each function runs until the fault is repaired, or ctx ends.
var faultTable = []struct {
	key   byte
	name  string // in the verdict
	label string // shown beside the key
	help  string
	do    func(*faults, context.Context)
}{
	{'b', "broker", "broker down",
		"The broker goes away. Commits go on, events wait in PostgreSQL; no attempt is counted. Again: it is back.",
		(*faults).toggleBroker},
	{'k', "kill", "kill a relay",
		"SIGKILL for the relay that leads. The other takes over when the lease ends, and repeats what wasn't settled.",
		(*faults).killLeader},
	{'l', "long", "long transaction",
		"A transaction stays open for 10 s after writing its event. Others are delivered as before.",
		func(f *faults, ctx context.Context) { f.longTransaction(ctx, 10*time.Second) }},
	{'r', "rollbacks", "roll-backs",
		"The next transactions write their event and roll back. None may reach the consumer.",
		func(f *faults, ctx context.Context) { f.rollBack(ctx, max(50, f.demo.service.rate())) }},
	{'p', "poison", "poison",
		"An event too large for the broker. It becomes a dead letter, and its order goes on.",
		(*faults).poison},
}

// controls are the keys beside those of faults that the page has as well.
var controls = []struct {
	key         byte
	name, label string
	help        string
}{
	{'+', "more", "more load", "Twice as many events a second."},
	{'-', "less", "less load", "Half as many events a second."},
	{'d', "drain", "drain & verdict", "No more load; everything committed is delivered, then the verdict."},
}

// keys is a list of all keys, help says what each does.
func keys(s style) string {
	list := ""
	for _, fault := range faultTable {
		list += " " + s.paint(bold, string(fault.key)) + " " + fault.label + "  "
	}
	list += "\n"
	for _, control := range controls {
		list += " " + s.paint(bold, string(control.key)) + " " + control.label + "  "
	}
	return list + " " + s.paint(bold, "q") + " quit   " + s.paint(bold, "?") + " help\n"
}

func help(s style) (text string) {
	line := func(key byte, help string) {
		text += " " + s.paint(bold, string(key)) + "  " + strings.TrimSpace(wrapText(help, "    ", 79)) + "\n"
	}
	for _, fault := range faultTable {
		line(fault.key, fault.help)
	}
	for _, control := range controls {
		line(control.key, control.help)
	}
	return text
}

// faults breaks things, and records the results.
type faults struct {
	demo *demo
	// calm is false from a fault until its backlog has been delivered.
	calm    atomic.Bool
	killing atomic.Bool   // a relay was killed, or a takeover is awaited
	ended   chan struct{} // closed when nothing more may be broken

	mu      sync.Mutex
	results []*result
	mend    context.CancelFunc // ends the broker's outage; nil while the broker is up
	longs   []time.Time        // since when transactions are open, the oldest first
	opened  int                // long transactions so far
}

// result is the result of a fault.
type result struct {
	Fault   string `json:"fault"` // a name of faultTable
	What    string `json:"what"`
	Outcome string `json:"outcome"`
	Done    bool   `json:"done"` // the fault is over

	began time.Time
}

// begin records a fault.
func (f *faults) begin(fault, what string) *result {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &result{Fault: fault, What: what, began: time.Now()}
	f.results = append(f.results, r)
	return r
}

func (f *faults) done(r *result, what, outcome string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.What, r.Outcome, r.Done = what, outcome, true
}

// until waits for a condition, and returns false if ctx ends first.
func until(ctx context.Context, ready func() bool) bool {
	for !ready() {
		if !sleep(ctx, 10*time.Millisecond) {
			return ready()
		}
	}
	return true
}

// sleep returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// press performs the fault of a key, while there is load.
func (f *faults) press(ctx context.Context, key byte) {
	if closed(f.ended) {
		return
	}
	for _, fault := range faultTable {
		if fault.key == key {
			f.demo.spawn(func() { fault.do(f, ctx) })
		}
	}
	before := f.demo.service.rate()
	rate := before
	switch key {
	case '+', '=':
		rate = min(MaxRate, rate*2)
	case '-':
		rate = max(1, rate/2)
	}
	if rate != before {
		f.demo.service.setRate(rate)
		f.demo.out.note("load", "load: %s events a second", printed.Number(rate))
	}
}

// perform performs every fault once, in a fixed order, spread over a run of that length. Each fault is repaired before
// the next, so that each shows by itself; a run that is too short for that takes longer. It returns early when writing
// ends.
func (f *faults) perform(ctx, writing context.Context, length time.Duration) {
	started := time.Now()
	part := func(share float64) time.Duration { return time.Duration(share * float64(length)) }
	for _, step := range []struct {
		at    float64     // share of the length
		ready func() bool // a further condition to wait for
		do    func()
	}{
		{0.05, nil, func() { f.rollBack(ctx, max(10, int(part(0.04).Seconds()*float64(f.demo.service.rate())))) }},
		{0.10, nil, func() { f.poison(ctx) }},
		{0.17, func() bool { return f.demo.leader().name != "" }, func() { f.killLeader(ctx) }},
		{0.62, f.calm.Load, func() { f.longTransaction(ctx, min(part(0.14), 10*time.Second)) }},
		{0.80, f.calm.Load, func() { f.takeBrokerDown(ctx, part(0.10)) }},
	} {
		if !sleep(writing, time.Until(started.Add(part(step.at)))) || step.ready != nil && !until(writing, step.ready) {
			return
		}
		step.do()
	}
}

// toggleBroker takes the broker down until the next call.
func (f *faults) toggleBroker(ctx context.Context) {
	f.mu.Lock()
	mend := f.mend
	f.mu.Unlock()
	if mend != nil {
		mend()
	} else {
		f.takeBrokerDown(ctx, 24*time.Hour)
	}
}

// takeBrokerDown takes the broker down for that time, or until it is repaired or the load ends.
func (f *faults) takeBrokerDown(ctx context.Context, length time.Duration) {
	d := f.demo
	f.mu.Lock()
	if f.mend != nil || closed(f.ended) {
		f.mu.Unlock()
		return
	}
	outage, mend := context.WithTimeout(ctx, length)
	defer mend()
	f.mend = mend
	f.calm.Store(false)
	f.mu.Unlock()
	r := f.begin("broker", "broker down")
	d.out.note("broker_down", "broker down: commits go on, their events wait in PostgreSQL")
	if err := d.broker.takeDown(); err != nil {
		d.fail(fmt.Errorf("take the broker down: %w", err))
		return
	}
	select {
	case <-outage.Done():
	case <-f.ended:
	}
	if ctx.Err() != nil {
		return
	}
	waiting := printed.Number(d.checker.Outstanding())
	if err := d.broker.bringUp(ctx); err != nil {
		d.fail(fmt.Errorf("bring the broker up again: %w", err))
		return
	}
	took := duration(time.Since(r.began))
	f.done(r, "broker down for "+took, waiting+" events waited in PostgreSQL meanwhile")
	d.out.note("broker_up", "broker up again after %s: %s events have waited", took, waiting)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mend = nil
}

// killLeader sends SIGKILL to the leading relay.
func (f *faults) killLeader(ctx context.Context) {
	d, victim := f.demo, f.demo.leader()
	if victim.name == "" || !f.killing.CompareAndSwap(false, true) {
		d.out.note("note", "no relay leads at the moment: nothing to kill")
		return
	}
	defer f.killing.Store(false)
	f.calm.Store(false)
	began := time.Now()
	pid, err := d.relays.kill(victim.name)
	if err != nil {
		d.fail(fmt.Errorf("kill %s: %w", victim.name, err))
		return
	}
	if pid == 0 {
		d.out.note("note", "%s isn't running: nothing to kill", victim.name)
		return
	}
	r := f.begin("kill", victim.name+" killed (SIGKILL)")
	d.out.note("relay_killed", "%s killed (SIGKILL, process %d): its lease must run out first", victim.name, pid)
	if !until(ctx, func() bool { now := d.leader(); return now.name != "" && now.epoch != victim.epoch }) {
		return
	}
	outcome := d.leader().name + " took over after " + duration(time.Since(began))
	if d.leader().name == victim.name {
		outcome = victim.name + " came back and went on after " + duration(time.Since(began))
	}
	f.done(r, r.What, outcome)
	d.out.note("takeover", "%s; %s events have waited", outcome, printed.Number(d.checker.Outstanding()))
}

// rollBack makes the next n transactions roll back.
func (f *faults) rollBack(ctx context.Context, n int) {
	d, what := f.demo, printed.Many(n, "transaction", "transactions")
	r := f.begin("rollbacks", what+" rolled back")
	d.service.rollbacks.Add(int64(n))
	d.out.note("rollbacks", "the next %s write their event and roll back: none may arrive", what)
	if until(ctx, func() bool { return d.service.rollbacks.Load() <= 0 }) {
		f.done(r, r.What, "none of their events was delivered")
		d.out.note("rollbacks_done", "%s, phantom %d", r.What, d.arrived.Counts().Phantom)
	}
}

// poison writes an event that the broker refuses.
func (f *faults) poison(ctx context.Context) {
	const order = 0 // the busiest order, so that later events come soon
	d, name, fate := f.demo, orderName(order), make(chan fate, 1)
	id, err := d.service.change(ctx, order, change{size: poisonSize, poison: true, fate: fate})
	if err != nil {
		d.trouble(err)
		return
	}
	r := f.begin("poison", fmt.Sprintf("poison message of %d KiB", poisonSize>>10))
	d.out.note("poison", "poison: %s has an event of %d KiB, the broker takes %d", name, poisonSize>>10, maxMessage>>10)
	if !until(ctx, func() bool { return len(fate) > 0 }) {
		return
	}
	letter := (<-fate).letter
	outcome := "dead letter (" + letter.Reason + ")"
	f.done(r, r.What, outcome)
	d.out.note("dead_letter", "the poison of %s is a dead letter (%s): %s", name, letter.Reason, letter.Error)
	if until(ctx, func() bool { return d.service.book.passed(id) }) {
		f.done(r, r.What, outcome+", "+name+" went on")
		d.out.note("order_goes_on", "%s goes on: its next event has arrived", name)
	}
}

// longTransaction writes an event and leaves its transaction open.
func (f *faults) longTransaction(ctx context.Context, length time.Duration) {
	d, fate := f.demo, make(chan fate, 1)
	f.mu.Lock()
	if closed(f.ended) || len(f.longs) == longOrders {
		f.mu.Unlock()
		d.out.note("note", "enough long transactions are open")
		return
	}
	began := time.Now()
	f.longs = append(f.longs, began)
	// It has an order of its own: the writers of another order would wait for it.
	order := uint32(d.cfg.Keys + f.opened%longOrders)
	f.opened++
	f.mu.Unlock()
	r := f.begin("long", "long transaction, "+duration(length))
	d.out.note("long_begin", "a transaction has written its event and stays open for %s: others must not wait for it",
		duration(length))

	before := d.arrived.Counts().Delivered
	var took, meanwhile string
	_, err := d.service.change(ctx, order, change{size: payloadSize, fate: fate, hold: func() {
		select {
		case <-ctx.Done():
		case <-f.ended:
		case <-time.After(length):
		}
		took, meanwhile = duration(time.Since(began)), printed.Number(d.arrived.Counts().Delivered-before)
	}})
	f.mu.Lock()
	f.longs = slices.DeleteFunc(f.longs, began.Equal)
	f.mu.Unlock()
	if err != nil {
		d.trouble(err)
		return
	}
	if until(ctx, func() bool { return len(fate) > 0 }) {
		delay := duration((<-fate).took)
		f.done(r, "long transaction, "+took, meanwhile+" delivered meanwhile, itself after "+delay)
		d.out.note("long_end", "the long transaction has committed after %s, its event came %s later; meanwhile %s others were delivered",
			took, delay, meanwhile)
	}
}

// longFor returns how long the oldest of the long transactions has been open, 0 if there is none.
func (f *faults) longFor(now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.longs) == 0 {
		return 0
	}
	return now.Sub(f.longs[0])
}

// settle is called from time to time with the number of events in flight.
func (f *faults) settle(outstanding uint64) {
	backlog := uint64(max(20, f.demo.service.rate()/5))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calm.Store(closed(f.demo.first) && f.mend == nil && !f.killing.Load() && outstanding < backlog)
}

// end ends long transactions and the broker's outage, when the load has ended.
func (f *faults) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.ended)
}

func (f *faults) brokerUp() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mend == nil
}

// over reports whether no fault keeps events from arriving.
func (f *faults) over() bool { return f.brokerUp() && f.longFor(time.Now()) == 0 }

// all returns all faults with their results.
func (f *faults) all() []result {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []result{}
	for _, r := range f.results {
		all = append(all, *r)
	}
	return all
}
