package bounds

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Fair shares one broker client among the senders that use it, in proportion to their weights, by start-time fair
// queueing (Goyal, Vin and Cheng, 1996): a call begins, on a clock that counts what has been sent, when the sender's
// last one has ended, and the earliest comes first. So a sender with little to send is before what one with much has
// waiting, what one does not use the others have, and nobody starves.
//
// What is on its way can't be passed. So there is only so much of it at once, and while several send, each sends by
// portions: see [Sender.Shares]. These are as large as the broker answers without making them wait for each other, by
// the fastest answers of late (as TCP Vegas has it): a slow one on a long way needs more on its way than a near one.
type Fair struct {
	most Amount

	mu       sync.Mutex
	scale    float64          // the part of most that may be on its way at once
	fastest  [2]time.Duration // answers, of the interval before and of this one
	interval time.Time        // when this one began
	clock    float64          // the start of the call that began last, in parts of most
	used     Amount           // of calls that don't hang
	calls    []*sent          // those, the oldest first
	spare    []*sent
	waiting  []*sends // in the order in which they came
	waits    uint64
	expiry   *time.Timer
	last     *Sender // that called last, and when
	lastAt   time.Time
	othersAt time.Time // when another one last did
}

// Sender is one of those that share a client.
type Sender struct {
	fair   *Fair
	weight float64
	ends   float64 // of its last call, on the clock
	calls  int     // that have begun and not returned, nor hang
}

// sends is a call that waits.
type sends struct {
	sender *Sender
	amount Amount
	starts float64
	sent   *sent         // set before ready is closed
	ready  chan struct{} // closed when it may begin
}

// sent is a call that has begun.
type sent struct {
	sender *Sender
	amount Amount
	since  time.Time
	shared bool
	hangs  bool
}

const (
	// hangsAfter is how long a call counts as on its way. One that takes longer hangs, and holds up only its sender.
	hangsAfter = time.Second

	// lately is for how long after a call of another one a sender shares the client with it.
	lately = time.Second

	// fastestWithin is how long an interval is of which the fastest answer is known.
	fastestWithin = 10 * time.Second

	// longer is how much longer than the fastest answer one may take before portions become smaller.
	longer = time.Millisecond

	// leastScale bounds how small.
	leastScale = 1. / 32

	// portions is how many parts of a sender are on their way together at most.
	portions = 4

	// senders is how many share a client. Each has room for a call of an equal part that doesn't wait for others.
	senders = 16
)

// NewFair returns the order for a client that may have most on its way while several send, and a part of it in any
// case: a 32nd.
func NewFair(most Amount) *Fair { return &Fair{most: most, scale: leastScale} }

// Sender returns one more that uses the client. Twice the weight is twice the share where two want more than there is.
func (f *Fair) Sender(weight float64) *Sender { return &Sender{fair: f, weight: weight} }

// Shares reports whether another one has sent lately, and returns how much one call may then have.
func (s *Sender) Shares() (portion Amount, shares bool) {
	f := s.fair
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.part(portions), f.shares(s)
}

// Begin waits until a call may begin, and returns what ends it. Who is alone never waits.
func (s *Sender) Begin(ctx context.Context, amount Amount) (*sent, error) {
	f := s.fair
	f.mu.Lock()
	f.called(s)
	starts := max(f.clock, s.ends)
	s.ends = starts + f.cost(amount)/s.weight
	if len(f.waiting) == 0 && f.fits(s, amount) {
		c := f.begin(s, amount, starts)
		f.mu.Unlock()
		return c, nil
	}
	w := &sends{sender: s, amount: amount, starts: starts, ready: make(chan struct{})}
	f.waiting = append(f.waiting, w)
	f.grant()
	if w.sent == nil {
		f.waits++
	}
	f.mu.Unlock()
	select {
	case <-w.ready:
		return w.sent, nil
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.sent != nil { // it began at the same moment
		f.free(w.sent)
	} else {
		f.waiting = slices.DeleteFunc(f.waiting, func(other *sends) bool { return other == w })
	}
	f.grant()
	return nil, ctx.Err()
}

// End ends a call that Begin has returned.
func (s *Sender) End(c *sent) {
	f := s.fair
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end(c)
	f.grant()
}

// called notes who calls. f.mu is held, as in all that follow.
func (f *Fair) called(s *Sender) {
	if f.last != s {
		f.othersAt, f.last = f.lastAt, s
	}
	f.lastAt = time.Now()
}

// part returns an n-th of what may be on its way now.
func (f *Fair) part(n float64) Amount {
	part := f.scale / n
	return Amount{max(int64(part*float64(f.most.Messages)), 1), int64(part * float64(f.most.Bytes))}
}

// answered adapts the portions to how long an answer took. Each interval begins with the smallest portions, so that the
// fastest answer has not waited for more than these.
func (f *Fair) answered(c *sent) {
	now := time.Now()
	took := now.Sub(c.since)
	if since := now.Sub(f.interval); since > fastestWithin {
		f.fastest[0], f.fastest[1], f.interval, f.scale = f.fastest[1], took, now, leastScale
		if since > 2*fastestWithin {
			f.fastest[0] = took
		}
	}
	f.fastest[1] = min(f.fastest[1], took)
	fastest := min(f.fastest[0], f.fastest[1])
	full := f.part(2 * portions)
	switch {
	case !c.shared || c.amount.Messages < full.Messages && c.amount.Bytes < full.Bytes: // it tells nothing of a portion
	case took > fastest+max(fastest/4, longer):
		f.scale = max(f.scale*0.8, leastScale)
	default:
		f.scale = min(f.scale*1.1, 1)
	}
}

// cost is the part of the bound that an amount has: of messages or bytes, whichever is more.
func (f *Fair) cost(a Amount) float64 {
	return max(float64(a.Messages)/float64(f.most.Messages), float64(a.Bytes)/float64(f.most.Bytes))
}

// shares reports whether others use the client besides s, or have done so lately.
func (f *Fair) shares(s *Sender) bool {
	at := f.othersAt
	if f.last != s {
		at = f.lastAt
	}
	return len(f.calls) > s.calls || !at.IsZero() && time.Since(at) < lately ||
		slices.ContainsFunc(f.waiting, func(w *sends) bool { return w.sender != s })
}

// fits reports whether there is room for a call that nothing is before.
func (f *Fair) fits(s *Sender, a Amount) bool {
	return f.used.plus(a).within(f.part(1)) || len(f.calls) == 0 || !f.shares(s) || s.calls == 0 && a.within(f.part(senders))
}

func (f *Fair) begin(s *Sender, a Amount, starts float64) *sent {
	var c *sent
	if n := len(f.spare); n > 0 {
		c, f.spare = f.spare[n-1], f.spare[:n-1]
	} else {
		c = new(sent)
	}
	*c = sent{sender: s, amount: a, since: f.lastAt, shared: f.shares(s)}
	f.clock = max(f.clock, starts)
	f.used = f.used.plus(a)
	f.calls = append(f.calls, c)
	s.calls++
	return c
}

func (f *Fair) end(c *sent) {
	f.answered(c)
	f.free(c)
}

// free gives back what a call has.
func (f *Fair) free(c *sent) {
	if !c.hangs {
		f.leave(c)
	}
	f.spare = append(f.spare, c)
}

// leave has a call count no longer.
func (f *Fair) leave(c *sent) {
	f.used = f.used.minus(c.amount)
	c.sender.calls--
	i := slices.Index(f.calls, c)
	f.calls = slices.Delete(f.calls, i, i+1)
}

// grant lets those begin that have room.
func (f *Fair) grant() {
	for len(f.waiting) > 0 {
		first := 0
		for i, w := range f.waiting {
			if w.starts < f.waiting[first].starts {
				first = i
			}
		}
		w := f.waiting[first]
		if !f.fits(w.sender, w.amount) {
			break
		}
		f.waiting = slices.Delete(f.waiting, first, first+1)
		w.sent = f.begin(w.sender, w.amount, w.starts)
		w.sent.since = time.Now()
		close(w.ready)
	}
	if f.expiry != nil {
		f.expiry.Stop()
		f.expiry = nil
	}
	if len(f.waiting) > 0 {
		f.expiry = time.AfterFunc(time.Until(f.calls[0].since.Add(hangsAfter)), f.expire)
	}
}

// expire lets others begin in place of calls that hang.
func (f *Fair) expire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.calls) > 0 && time.Since(f.calls[0].since) >= hangsAfter {
		c := f.calls[0]
		c.hangs = true
		f.leave(c)
	}
	f.grant()
}

// Waiting returns how many calls wait now, and how many have had to so far.
func (f *Fair) Waiting() (now int, waits uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.waiting), f.waits
}
