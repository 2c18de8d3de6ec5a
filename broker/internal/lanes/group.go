package lanes

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/broker/consume"
)

// Group holds the messages of one source, such as a partition or a queue, from their arrival until they are settled.
// Messages of one key are handled in the order in which they were added.
//
// mu is a leaf: no message is handled or settled while it is held.
type Group struct {
	engine  *Engine
	hard    context.Context // ends when handlers have to return
	harden  context.CancelFunc
	soft    chan struct{} // closed when no more handlers may begin
	running sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	lanes   map[string]*lane
	held    map[*Delivery]struct{}
	room    chan struct{} // has an element if messages were settled since it was last drained
}

// lane is the waiting messages of one key. It exists as long as its goroutine.
type lane struct{ waiting []*Delivery }

// Group returns a new group, which must be drained at the end.
func (e *Engine) Group() *Group {
	g := &Group{engine: e, soft: make(chan struct{}), lanes: map[string]*lane{},
		held: map[*Delivery]struct{}{}, room: make(chan struct{}, 1)}
	g.hard, g.harden = context.WithCancel(context.Background())
	return g
}

// Add adds a message. A group that was drained returns it to the broker at once.
func (g *Group) Add(d *Delivery) {
	key := d.Message.OrderingKey()
	if key != "" {
		d.Attempts = 0
	}
	g.engine.cfg.Observer.Received(&d.Message)
	g.mu.Lock()
	if g.stopped {
		g.mu.Unlock()
		g.engine.settle(d, consume.Returned, 0)
		return
	}
	g.held[d] = struct{}{}
	if l := g.lanes[key]; l != nil && key != "" {
		l.waiting = append(l.waiting, d)
		g.mu.Unlock()
		return
	}
	l := &lane{waiting: []*Delivery{d}}
	if key != "" {
		g.lanes[key] = l
	}
	g.running.Add(1)
	g.mu.Unlock()
	go g.work(key, l)
}

// Held is the number of messages that are not settled.
func (g *Group) Held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.held)
}

// All returns the messages that are not settled, in no order.
func (g *Group) All() []*Delivery {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]*Delivery, 0, len(g.held))
	for d := range g.held {
		all = append(all, d)
	}
	return all
}

// Room waits until fewer than limit messages are held, and returns how many may be added; 0 when ctx ends.
func (g *Group) Room(ctx context.Context, limit int) int {
	for {
		if free := limit - g.Held(); free > 0 {
			return free
		}
		select {
		case <-g.room:
		case <-ctx.Done():
			return 0
		}
	}
}

// Drain starts no more handlers, waits for those that run, and returns when every message is settled. After the
// engine's DrainTimeout it ends the contexts of running handlers, and leaves behind those that still don't return. It
// may be called more than once.
func (g *Group) Drain() { g.drain(g.engine.cfg.DrainTimeout) }

// Cut is Drain without a timeout, for messages that already belong to another consumer.
func (g *Group) Cut() { g.drain(0) }

// Stop starts no more handlers, and doesn't wait. Drain must follow.
func (g *Group) Stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped {
		g.stopped = true
		close(g.soft)
	}
}

func (g *Group) drain(patience time.Duration) {
	g.Stop()
	timer := time.AfterFunc(patience, g.harden)
	g.running.Wait()
	timer.Stop()
	g.harden()
}

// work handles the messages of a lane, and ends when none is left.
func (g *Group) work(key string, l *lane) {
	defer g.running.Done()
	for {
		d, stopped := g.next(key, l)
		if d == nil {
			return
		}
		outcome, pause := consume.Returned, time.Duration(0)
		if !stopped {
			outcome, pause = g.engine.process(g, d, key != "")
		}
		g.engine.settle(d, outcome, pause)
		g.release(d)
	}
}

func (g *Group) next(key string, l *lane) (d *Delivery, stopped bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(l.waiting) == 0 {
		if key != "" {
			delete(g.lanes, key)
		}
		return nil, g.stopped
	}
	d = l.waiting[0]
	l.waiting[0] = nil
	l.waiting = l.waiting[1:]
	return d, g.stopped
}

func (g *Group) release(d *Delivery) {
	g.mu.Lock()
	delete(g.held, d)
	g.mu.Unlock()
	select {
	case g.room <- struct{}{}:
	default:
	}
}

// acquire waits for a slot; false if no more handlers may begin.
func (g *Group) acquire(slots chan struct{}) bool {
	select {
	case <-g.soft:
		return false
	default:
	}
	select {
	case slots <- struct{}{}:
		return true
	case <-g.soft:
		return false
	}
}

// wait pauses; false if no more handlers may begin.
func (g *Group) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-g.soft:
		return false
	}
}

// outlive waits for the end of a handler that hangs, if err is of that kind: no other message of its key may be handled
// at the same time.
func (g *Group) outlive(err error) {
	var h *hung
	if !errors.As(err, &h) {
		return
	}
	select {
	case <-h.ended:
	case <-g.soft:
	}
}
