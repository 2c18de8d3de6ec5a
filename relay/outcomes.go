package relay

import (
	"errors"
	"slices"
	"time"

	"github.com/pgoutbox/outbox"
)

// onPublished takes the outcome of a call: nil, or an error per message. The call is used again.
func (c *core) onPublished(now time.Time, k *call, errs []error) {
	c.stripes[k.stripe].inFlight = nil
	if errs == nil {
		for _, it := range k.items {
			c.deliver(now, it)
		}
		c.leaveLanes(k)
		c.updateOutage(now, k, true, nil)
		c.freeCall(k)
		c.advance(now)
		return
	}
	failed, answered, unanswered := c.outcomes(now, k, errs)
	c.giveBack(k)
	c.leaveLanes(k)
	c.updateOutage(now, k, answered, unanswered)
	for _, it := range failed {
		c.fail(now, it)
	}
	c.freeCall(k)
	c.advance(now)
}

// outcomes marks delivered items as done and the others as queued again. It returns those whose failure counts: of each
// lane only the first, because the answer for a message behind a failed one counts only if it is an acceptance.
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
		c.addLane(it)
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

// leaveLanes detaches the items of a call from their lanes, and drops the lanes that have nothing left to do.
func (c *core) leaveLanes(k *call) {
	for _, it := range k.items {
		l := it.lane
		if l == nil {
			continue
		}
		it.lane = nil
		l.flying--
		c.dirty = true
		c.dropIfDone(l)
	}
}

// updateOutage begins or prolongs the outage of the destination after a call without any answer, and ends it after any
// answer, unless the destination has asked for a pause: calls that were under way then don't end it.
func (c *core) updateOutage(now time.Time, k *call, answered bool, unanswered error) {
	o := &c.outage
	if k.outageProbe {
		o.probing = false
	}
	switch {
	case unanswered == nil:
		if answered && !now.Before(o.asked) {
			*o = outage{}
		}
	case o.failures == 0 || k.outageProbe:
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

// deliver records that the broker has accepted an item.
func (c *core) deliver(now time.Time, it *item) {
	it.state = done
	if len(c.refused) > 0 {
		delete(c.refused, c.stored.key(it.d.Lane()))
	}
	c.endOutage(now, it)
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
	case outbox.IsTopicUnavailable(it.err) && !c.messageAtFault(it):
		c.beginOutage(now, it)
	case outbox.IsPermanent(it.err):
		c.exhaust(it, ReasonRefused)
	case it.d.Attempts >= c.cfg.MaxAttempts:
		c.exhaust(it, ReasonExhausted)
	default:
		pause := max(c.cfg.Backoff.delay(it.d.Attempts, c.rand()), outbox.RetryDelay(it.err))
		c.retry(now, it, now.Add(pause))
	}
}
