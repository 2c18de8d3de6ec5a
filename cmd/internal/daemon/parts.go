package daemon

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
)

// choice is what this process is to a part.
type choice uint8

const (
	elsewhere    choice = iota // another process has it, and this one does nothing for it
	secondChoice               // this process stands by, and gives the part up when the first choice waits for it
	firstChoice
)

// placed are the choices for the parts of a unit. They may change while it runs.
type placed struct {
	fixed bool // all parts are here, always

	mu      sync.Mutex
	choices []choice      // by part
	changed chan struct{} // closed by the next change
	runs    []bool        // by part
	moved   func()        // is told when runs has changed; may be nil
}

func newPlaced(parts int, fixed bool) *placed {
	p := &placed{fixed: fixed, choices: make([]choice, parts), changed: make(chan struct{}), runs: make([]bool, parts)}
	if fixed {
		for i := range p.choices {
			p.choices[i] = firstChoice
		}
	}
	return p
}

// set takes over other choices.
func (p *placed) set(choices []choice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Equal(p.choices, choices) {
		return
	}
	p.choices = choices
	close(p.changed)
	p.changed = make(chan struct{})
}

// now returns the choices, which nobody changes, and what is closed when there are others.
func (p *placed) now() (choices []choice, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.choices, p.changed
}

// run notes that a part runs, or has ended.
func (p *placed) run(part int, runs bool) {
	p.mu.Lock()
	moved := p.moved
	p.runs[part] = runs
	p.mu.Unlock()
	if moved != nil {
		moved()
	}
}

// running says which parts run.
func (p *placed) running() []bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.runs)
}

// notify has f told when a part starts or ends.
func (p *placed) notify(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved = f
}

// here reports whether a part runs here, or stands by.
func here(c choice) bool { return c != elsewhere }

// await waits until a part is here. It returns false when ctx has ended.
func (p *placed) await(ctx context.Context) bool {
	for ctx.Err() == nil {
		choices, changed := p.now()
		if slices.ContainsFunc(choices, here) {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return false
}

// running is a part that runs, or stands by.
type running struct {
	stop    context.CancelFunc
	choice  choice
	since   time.Time // of the choice
	ending  bool
	delayed bool // that nobody waits for it has been logged
}

func (r *running) end() {
	r.ending = true
	r.stop()
}

const (
	// handOverPause is the first pause between two looks whether somebody waits for a part, lazyPause the later ones.
	handOverPause = 100 * time.Millisecond
	lazyPause     = time.Second
	// handOverWithin is how long the next owner of a part has to stand by. One of which this can't be seen has to be
	// ready by then; the others are waited for, and this is when the log says so.
	handOverWithin = 5 * time.Second
)

// deliver runs the parts that are here, until ctx ends, none is here any more, or all have given up for good. It
// returns what they have given up with.
func (u *unit) deliver(ctx context.Context) error {
	type outcome struct {
		part int
		err  error
	}
	ended := make(chan outcome)
	parts := make(map[int]*running)
	errs := make([]error, len(u.parts))
	upkeep := &upkeep{unit: u, ending: make(map[int]context.CancelFunc)}
	defer upkeep.end()
	hand := &handOver{unit: u}
	defer hand.close()
	for {
		choices, changed := u.placed.now()
		for i, c := range choices {
			if ctx.Err() != nil {
				break
			}
			upkeep.set(ctx, i, here(c))
			switch r := parts[i]; {
			case r != nil && r.choice != c:
				r.choice, r.since, r.delayed = c, time.Now(), false
			case r != nil:
			case c == elsewhere:
				errs[i] = nil // it is tried once more when it comes back
			case errs[i] == nil:
				own, stop := context.WithCancel(ctx)
				parts[i] = &running{stop: stop, choice: c, since: time.Now()}
				u.placed.run(i, true)
				go func() { ended <- outcome{i, u.runPart(own, u.parts[i])} }()
			}
		}
		u.announce(func(i int) bool { return parts[i] != nil })
		if len(parts) == 0 && (ctx.Err() != nil || u.placed.fixed || !slices.ContainsFunc(choices, here)) {
			return errors.Join(errs...)
		}
		serving := ctx.Done()
		if ctx.Err() != nil {
			serving = nil
		}
		look := hand.next(parts)
		select {
		case o := <-ended:
			parts[o.part].stop()
			delete(parts, o.part)
			u.placed.run(o.part, false)
			if errs[o.part] = o.err; o.err != nil {
				u.givenUp(u.parts[o.part], o.err)
			}
		case <-changed:
		case <-serving:
		case <-look:
			hand.look(ctx, parts)
		}
	}
}

func (u *unit) givenUp(p part, err error) {
	u.notify.stopped(p.destination.Name, err)
	u.watch.note(p.destination.Name, p.group, relay.StateStopped, err)
	u.logger.Error("destination given up; others go on", "destination", p.destination.Name, "shard_group", p.group, "error", err)
}

// announce makes the watch know which parts are here: those that are placed here, and those that have yet to end.
func (u *unit) announce(runs func(part int) bool) {
	if u.placed.fixed {
		return // it has known since the beginning
	}
	choices, _ := u.placed.now()
	for i, p := range u.parts {
		if here(choices[i]) || runs(i) {
			u.watch.starting(p.destination.Name, p.group, p.destination.Source == nil)
		} else {
			u.watch.gone(p.destination.Name, p.group)
		}
	}
	u.watch.leading(len(choices) > 0 && here(choices[0]))
}

// handOver finds out when a part may end that isn't this process's any more: when the next owner waits for it. So no
// destination pauses longer than the drain takes, and a part whose next owner can't reach the database goes on here.
type handOver struct {
	unit *unit
	conn *pgx.Conn
}

// wanted are the parts that others have to have.
func (h *handOver) wanted(parts map[int]*running) (list []int) {
	for _, i := range slices.Sorted(maps.Keys(parts)) {
		if r := parts[i]; r.choice != firstChoice && !r.ending && (r.choice == elsewhere || h.unit.watch.holds(h.unit.parts[i])) {
			list = append(list, i)
		}
	}
	return list
}

// next returns what fires when a look is due, nil if none is.
func (h *handOver) next(parts map[int]*running) <-chan time.Time {
	standBy := false
	var since time.Time
	for _, r := range parts {
		if r.choice != firstChoice && !r.ending {
			standBy = true
			if r.choice == elsewhere && r.since.After(since) {
				since = r.since
			}
		}
	}
	if !standBy {
		h.close()
		return nil
	}
	pause := lazyPause
	if time.Since(since) < handOverWithin {
		pause = handOverPause
	}
	return time.After(pause)
}

// look ends the parts whose next owner waits for them, or that this process doesn't hold.
func (h *handOver) look(ctx context.Context, parts map[int]*running) {
	for _, i := range h.wanted(parts) {
		p, r := h.unit.parts[i], parts[i]
		switch free, err := h.free(ctx, p, r); {
		case err != nil:
			h.close()
			h.unit.logger.Debug("it isn't known whether another member waits for a part", "destination", p.destination.Name, "error", err)
			return
		case free:
			r.end()
		case r.choice == elsewhere && !r.delayed && time.Since(r.since) > handOverWithin:
			r.delayed = true
			h.unit.logger.Warn("a part is kept, since the member that is to have it doesn't wait for it yet: its log says why",
				"destination", p.destination.Name, "shard_group", p.group)
		}
	}
}

func (h *handOver) free(ctx context.Context, p part, r *running) (bool, error) {
	if !h.unit.watch.holds(p) {
		return r.choice == elsewhere, nil
	}
	if p.destination.Source != nil {
		return r.choice == elsewhere && time.Since(r.since) > handOverWithin, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if h.conn == nil {
		var err error
		if h.conn, err = connect.Open(ctx, h.unit.conn, h.unit.Origin); err != nil {
			return false, err
		}
	}
	return polling.Awaited(ctx, h.conn, p.destination.Name, p.group)
}

func (h *handOver) close() {
	if h.conn != nil {
		connect.Close(h.conn)
		h.conn = nil
	}
}

// upkeep is what is done once for a database, by who has its first part, and once for a table, by who has the first
// part of its destination. Several that do it do no harm.
type upkeep struct {
	unit    *unit
	working sync.WaitGroup
	ending  map[int]context.CancelFunc // by part
}

// set begins or ends what goes with a part.
func (k *upkeep) set(ctx context.Context, i int, here bool) {
	end, runs := k.ending[i]
	if !here && runs {
		end()
		delete(k.ending, i)
	}
	if !here || runs {
		return
	}
	u, p := k.unit, k.unit.parts[i]
	own, end := context.WithCancel(context.WithoutCancel(ctx)) // it goes on while parts drain
	k.ending[i] = end
	if i == 0 && u.retention != nil {
		k.working.Go(func() { _ = u.retention.Run(own) }) // it ends with own, and reports its errors as they come
	}
	if s := p.destination.Source; s != nil && s.Purge != nil && p.group == 0 {
		k.working.Go(func() { u.purge(own, p.destination) })
	}
}

func (k *upkeep) end() {
	for _, end := range k.ending {
		end()
	}
	k.working.Wait()
}
