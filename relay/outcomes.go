package relay

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pgoutbox/outbox"
)

// What the broker answered, and what follows from it: done, a retry, a hold, a dead letter, an outage.

// outage is the state of a destination where no answer comes.
type outage struct {
	failures int // 0: no outage
	until    time.Time
	asked    time.Time // the destination asked for a pause until then
	probing  bool
	cause    error
}

// forbids reports whether nothing may be published: only after the pause, and then one call at a time.
func (o *outage) forbids(now time.Time) bool {
	return o.failures > 0 && (o.probing || now.Before(o.until))
}

// onPublished takes the outcome of a call: nil, or an error per message. The call is used again.
func (c *core) onPublished(now time.Time, k *call, errs []error) {
	c.stripes[k.stripe].inFlight = nil
	if errs == nil {
		for _, it := range k.items {
			c.deliver(now, it)
		}
		c.land(k)
		c.judge(now, k, true, nil)
		c.freeCall(k)
		c.advance(now)
		return
	}
	failed, answered, unanswered := c.outcomes(now, k, errs)
	c.giveBack(k)
	c.land(k)
	c.judge(now, k, answered, unanswered)
	for _, it := range failed {
		c.fail(now, it)
	}
	c.freeCall(k)
	c.advance(now)
}

// outcomes marks delivered items as done and the others as queued again. It returns those whose failure
// counts, which are the first of their lanes: what a broker says of a message behind a failed one is not
// believed, but for its acceptance.
func (c *core) outcomes(now time.Time, k *call, errs []error) (failed []*item, answered bool, unanswered error) {
	broken := make(map[string]bool)
	for i, it := range k.items {
		err := errs[i]
		if err == nil {
			answered = true
			c.deliver(now, it)
			continue
		}
		it.state = queued
		name := it.d.Lane()
		unavailable := outbox.IsUnavailable(err)
		if unavailable && (unanswered == nil || outbox.RetryDelay(err) > outbox.RetryDelay(unanswered)) {
			unanswered = err
		}
		if broken[name] {
			continue
		}
		broken[name] = true
		if unavailable || errors.Is(err, outbox.ErrSkipped) {
			continue
		}
		answered = true
		if !outbox.IsTopicUnavailable(err) {
			it.d.Attempts++
		}
		it.err = err
		c.openLane(it)
		failed = append(failed, it)
	}
	return failed, answered, unanswered
}

// giveBack returns what was not delivered to the front of its lane or queue, in order.
func (c *core) giveBack(k *call) {
	s := &c.stripes[k.stripe]
	var back []*item
	for _, it := range slices.Backward(k.items) {
		if it.state != queued {
			continue
		}
		if l := c.laneOf(it); l != nil {
			l.queue = slices.Insert(l.queue, 0, it)
		} else {
			back = append(back, it)
		}
	}
	if len(back) > 0 {
		slices.Reverse(back)
		s.queue = append(back, s.queue...)
	}
}

// land takes a call's items off their lanes and closes the lanes that have nothing left to do.
func (c *core) land(k *call) {
	for _, it := range k.items {
		l := it.lane
		if l == nil {
			continue
		}
		it.lane = nil
		l.flying--
		c.dirty = true
		c.closeIfDone(l)
	}
}

// judge moves the outage on. A call without any answer begins or prolongs it; any answer ends it, unless
// the destination has asked for a pause: calls that were on their way then say nothing about its end.
func (c *core) judge(now time.Time, k *call, answered bool, unanswered error) {
	o := &c.outage
	if k.probe {
		o.probing = false
	}
	switch {
	case unanswered == nil:
		if answered && !now.Before(o.asked) {
			*o = outage{}
		}
	case o.failures == 0 || k.probe:
		o.failures++
		if answered {
			o.failures = 1
		}
		o.cause = unanswered
		asked := outbox.RetryDelay(unanswered)
		o.asked = now.Add(asked)
		o.until = now.Add(max(asked, c.cfg.Outage.delay(o.failures, c.rand())))
	}
}

// deliver records that the broker has it.
func (c *core) deliver(now time.Time, it *item) {
	it.state = done
	if len(c.refused) > 0 {
		delete(c.refused, c.stored.key(it.d.Lane()))
	}
	c.open(now, it)
	if it.held {
		c.loaded--
		c.held.delivered = append(c.held.delivered, it.d)
		c.held.count++
	}
}

// fail decides what a refusal leads to: a retry, a hold, the outage of a topic, or the policy for exhausted messages.
// it is the head of its lane, with err and d.Attempts set.
func (c *core) fail(now time.Time, it *item) {
	switch {
	case outbox.IsTopicUnavailable(it.err) && !c.wronged(it):
		c.shut(now, it)
	case outbox.IsPermanent(it.err):
		c.exhaust(it, ReasonRefused)
	case it.d.Attempts >= c.cfg.MaxAttempts:
		c.exhaust(it, ReasonExhausted)
	default:
		pause := max(c.cfg.Backoff.delay(it.d.Attempts, c.rand()), outbox.RetryDelay(it.err))
		c.retry(now, it, now.Add(pause))
	}
}

// retry lets the head of a lane wait until due: in memory if that is soon, else as a hold.
func (c *core) retry(now time.Time, it *item, due time.Time) {
	c.dirty = true
	l := c.lanes[it.d.Lane()]
	switch {
	case it.held:
		c.retryHeld(l, it, due, false)
	case due.Sub(now) > c.cfg.HoldAfter || c.draining:
		c.hold(l, due, false)
	default:
		l.due = due
	}
}

// retryHeld records a failed attempt of a hold, or that it waits for something else. What is loaded of the lane is
// dropped: it is in the database, and the lane is listed when the head is due.
func (c *core) retryHeld(l *lane, it *item, due time.Time, blocked bool) {
	c.held.retry = append(c.held.retry, Hold{Delivery: it.d, RetryAt: due, Blocked: blocked, Err: it.err})
	c.held.count++
	if !blocked {
		c.listBy(due)
	}
	c.loaded -= len(l.queue)
	l.queue = nil
	c.closeLane(l)
}

// exhaust applies the destination's policy to the head of a lane, which will not be tried again.
func (c *core) exhaust(it *item, reason Reason) {
	c.dirty = true
	it.reason = reason
	l := c.lanes[it.d.Lane()]
	switch {
	case c.cfg.OnExhausted == Stop:
		// It stays where it is: nothing is published any more.
		if c.stopped == nil {
			row := ""
			if it.d.Row != "" {
				row = fmt.Sprintf("row %.200q, ", it.d.Row)
			}
			c.stopped = fmt.Errorf("message %s (%stopic %.200q, key %.200q) can't be delivered after %d attempts and the policy is %q: %w",
				it.d.ID, row, it.d.Topic, it.d.OrderingKey(), it.d.Attempts, Stop, it.err)
		}
	case c.cfg.OnExhausted == Block && it.held:
		c.retryHeld(l, it, time.Time{}, true)
	case c.cfg.OnExhausted == Block:
		c.hold(l, time.Time{}, true)
	case it.held:
		l.queue = slices.Delete(l.queue, 0, 1)
		l.barrier = it
		c.loaded--
		c.held.dead = append(c.held.dead, Dead{Delivery: it.d, Reason: reason, Err: it.err})
		c.held.barriers = append(c.held.barriers, l)
		c.held.count++
	default:
		l.queue = slices.Delete(l.queue, 0, 1)
		l.mode, l.barrier = laneBarrier, it
		it.state = toDead
	}
}

// hold turns a lane's waiting items into holds: the head with its due time, the rest behind it.
func (c *core) hold(l *lane, due time.Time, blocked bool) {
	for i, it := range l.queue {
		c.holdBehind(it)
		if i == 0 {
			it.retryAt, it.blocked = due, blocked
		}
	}
	l.queue = nil
	c.closeLane(l)
}

// holdBehind turns an item into a hold that waits behind others of its lane. Should none be there any more when it is
// stored, it is due at once: see Settlement.Hold.
func (c *core) holdBehind(it *item) {
	it.state, it.retryAt, it.blocked = toHold, time.Time{}, false
	if it.keyed() {
		key := c.stored.key(it.d.Lane())
		c.stored.add(key)
		c.pending[key] = append(c.pending[key], it)
	}
}
