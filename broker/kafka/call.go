package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/search"
)

// call is one Publish.
type call struct {
	*seat
	ctx   context.Context
	batch []*outbox.Message

	accepted func(outbox.ID, outbox.Receipt) // nil: receipts are not wanted

	errs      []error          // nil as long as everything is accepted
	failed    map[string]int32 // the first failed message of each key
	topicErrs map[string]error // topics that can't be published to
	stopped   error            // the answer for all messages that have not been sent; nil: continue
	bytes     int              // of the planned payloads
	began     time.Time
	spent     search.Budget // on finding refused messages
}

// publish determines the outcome of every message of the batch.
func (c *call) publish() {
	c.began = time.Now()
	c.formatted.encode(c.cluster.cfg.records, c.batch)
	c.plan.reset(len(c.batch))
	several := c.resolve()
	for i := range c.batch {
		c.check(int32(i))
	}
	if several {
		c.plan.divide(c.batch)
	}
	for rest := c.plan.order; len(rest) > 0; {
		n := c.nextWave(rest)
		c.deliver(rest[:n])
		rest = rest[n:]
	}
}

// fail sets the outcome of message i to err, unless an earlier message of its key has failed.
func (c *call) fail(i int32, err error) {
	if c.errs == nil {
		c.errs = make([]error, len(c.batch))
		c.failed = map[string]int32{}
	}
	c.errs[i] = err
	key := c.batch[i].OrderingKey()
	if key == "" {
		return
	}
	switch first, found := c.failed[key]; {
	case !found:
		c.failed[key] = i
	case i < first:
		c.failed[key] = i
		c.follow(first)
	case i > first:
		c.follow(i)
	}
}

// follow changes the error of message i to one that reports a failed predecessor, unless its outcome is unknown.
func (c *call) follow(i int32) {
	if !outbox.IsUnavailable(c.errs[i]) {
		c.errs[i] = outbox.ErrSkipped
	}
}

// skip answers message i if an earlier message of its key has failed.
func (c *call) skip(i int32) bool {
	first, found := c.failed[c.batch[i].OrderingKey()]
	if found && first < i {
		c.errs[i] = outbox.ErrSkipped
		return true
	}
	return false
}

// stop makes err, which concerns no single message, the answer for all messages that have not been sent.
func (c *call) stop(err error) {
	if c.stopped == nil {
		c.stopped = outbox.Unavailable(err)
	}
}

// resolve fills plan.topics, looks up unknown topics, and reports whether there are several. Messages whose topic can't
// be had get none.
func (c *call) resolve() (several bool) {
	var missing []string
	var name []byte
	var last *topic
	known := *c.cluster.topics.Load()
	for i, m := range c.batch {
		if last != nil && c.cluster.topic.plain && last.name == m.Topic {
			c.plan.topics[i] = last
			continue
		}
		name = c.cluster.topic.Append(name[:0], m)
		t := known[string(name)]
		if t == nil {
			if !slices.Contains(missing, string(name)) && c.cluster.topic.fault(string(name)) == "" {
				missing = append(missing, string(name))
			}
			several = true // a wrong true costs a moment
			continue
		}
		several = several || last != nil && last != t
		last = t
		c.plan.topics[i] = t
	}
	if len(missing) > 0 {
		found := c.lookup(missing) // what all calls share may have changed again
		for i, m := range c.batch {
			if c.plan.topics[i] == nil {
				c.plan.topics[i] = found[string(c.cluster.topic.Append(name[:0], m))]
			}
		}
	}
	return several
}

// lookup asks about topics, and returns those that can be published to.
func (c *call) lookup(names []string) topics {
	found, errs, down := c.cluster.lookup(c.ctx, names)
	if down != nil {
		c.stop(down)
		return nil
	}
	if c.topicErrs == nil {
		c.topicErrs = errs
		return found
	}
	for _, name := range names {
		c.topicErrs[name] = errs[name]
	}
	return found
}

// check plans message i to be sent, or sets the reason why it can't be.
func (c *call) check(i int32) {
	if c.tx != nil && c.tx.open.produced(c.batch[i]) {
		return // an earlier transaction has it
	}
	if len(c.failed) > 0 && c.skip(i) {
		return
	}
	if err := c.unfit(i); err != nil {
		c.fail(i, err)
		return
	}
	c.plan.order = append(c.plan.order, i)
	c.bytes += len(c.formatted.value(i, c.batch[i]))
}

// unfit returns why message i must not be sent.
func (c *call) unfit(i int32) error {
	m, t := c.batch[i], c.plan.topics[i]
	hasFormat := len(c.formatted.records) > 0
	key := m.OrderingKey()
	if hasFormat {
		if err := c.formatted.records[i].err; err != nil {
			return err
		}
		key = string(c.formatted.records[i].Key)
	}
	if strings.HasPrefix(key, cursorKey) {
		return outbox.Permanent(fmt.Errorf("kafka: the key %.60q begins as those of cursor topics do, which relays "+
			"write alone; change the message's key", key))
	}
	if t == nil {
		name := string(c.cluster.topic.Append(nil, m))
		if fault := c.cluster.topic.fault(name); fault != "" {
			return outbox.Permanent(fmt.Errorf("kafka: topic %.60q: a topic %s; change the message's topic or the topic template %q",
				name, fault, c.cluster.cfg.Topic))
		}
		if err := c.topicErrs[name]; err != nil {
			return err
		}
		if c.stopped != nil {
			return c.stopped
		}
		return outbox.Unavailable(c.cluster.down(fmt.Errorf("topic %q: the cluster's answer says nothing about it", name)))
	}
	if name := reserved(m); name != "" && !hasFormat {
		return outbox.Permanent(fmt.Errorf("kafka: header %.100q can't be sent: names with the prefix outbox- are reserved; rename it",
			name))
	}
	if t.compacted && !c.keyed(i) {
		return outbox.Permanent(fmt.Errorf("kafka: topic %q is compacted, and takes no message without a key; set the "+
			"message's key, or the topic's cleanup.policy to delete", t.name))
	}
	if !hasFormat && atMost(m) <= t.limit {
		return nil
	}
	bytes := c.size(i, t)
	if bytes > t.limit && time.Since(t.checked) > freshFor {
		if t = c.refresh(i); t == nil {
			return c.unfit(i)
		}
	}
	if bytes > t.limit {
		return outbox.Permanent(fmt.Errorf("kafka: the record has %d bytes and topic %q takes %d at most; raise the "+
			"topic's max.message.bytes, or send less", bytes, t.name, t.limit))
	}
	return nil
}

// reserved returns the name of a header that would collide with one of ours, if there is one.
func reserved(m *outbox.Message) string {
	for i := range m.Headers {
		if outbox.ReservedHeader(m.Headers[i].Name) {
			return m.Headers[i].Name
		}
	}
	return ""
}

// keyed reports whether the record of message i has a key; the key of a format may be empty.
func (c *call) keyed(i int32) bool {
	if len(c.formatted.records) > 0 {
		return c.formatted.records[i].Key != nil
	}
	return c.batch[i].OrderingKey() != ""
}

// size returns the size that the server compares with the limit. Two bytes are for libraryMargin.
func (c *call) size(i int32, t *topic) int {
	c.slab.reset(1)
	c.formatted.record(&c.slab, i, c.batch[i], t.name, time.Time{})
	return libraryMargin + size(&c.slab.records[0])
}

// refresh returns message i's topic as it was found after the call began, and looks it up for that once; nil if that
// fails.
func (c *call) refresh(i int32) *topic {
	name := c.plan.topics[i].name
	t := (*c.cluster.topics.Load())[name]
	if t == nil || t.checked.Before(c.began) {
		t = c.lookup([]string{name})[name]
	}
	c.plan.topics[i] = t
	return t
}

// nextWave returns how many messages from the front of rest are sent together: those of one wave, up to a size.
func (c *call) nextWave(rest []int32) int {
	if c.plan.waves == 1 && len(rest) <= partRecords && c.bytes <= partBytes {
		return len(rest)
	}
	bytes := 0
	for n, i := range rest {
		bytes += len(c.formatted.value(i, c.batch[i]))
		if n > 0 && (n == partRecords || bytes > partBytes || c.plan.waves > 1 && c.plan.wave[i] != c.plan.wave[rest[0]]) {
			return n
		}
	}
	return len(rest)
}

// deliver sends messages and sets their outcomes.
func (c *call) deliver(part []int32) {
	if len(c.failed) > 0 {
		part = slices.DeleteFunc(part, c.skip)
	}
	if len(part) == 0 {
		return
	}
	if c.stopped != nil {
		for _, i := range part {
			c.fail(i, c.stopped)
		}
		return
	}
	err := c.begin(len(part))
	if err == nil && c.tx != nil {
		err = c.stage(c.batch, part)
	}
	if err != nil {
		c.stop(c.cluster.down(err))
		c.deliver(part)
		return
	}
	now := time.Now()
	for _, i := range part {
		c.buffer(c.formatted.record(&c.slab, i, c.batch[i], c.plan.topics[i].name, now))
	}
	err = c.send(c.ctx)
	switch {
	case err != nil && c.tx != nil && !c.tx.takenBack:
		c.stop(c.cluster.down(err))
		c.deliver(part)
	case err != nil || c.seat.failed.Load() > 0:
		c.judge(part, err)
	default:
		for n, i := range part {
			c.tell(i, n)
		}
	}
}

// tell reports where message i, the n-th of a part, was stored.
func (c *call) tell(i int32, n int) {
	if c.accepted != nil {
		r := &c.slab.records[n]
		c.accepted(c.batch[i].ID, outbox.Receipt{Partition: r.Partition, Offset: r.Offset})
	}
}

// judge sets the outcomes of a part that was not accepted entirely; gaveUp is what send returned.
func (c *call) judge(part []int32, gaveUp error) {
	var refused, unsent []int32
	var unknown, refusal error
	for n, i := range part {
		cause, failed := c.failures[&c.slab.records[n]]
		if !failed {
			if c.takenBack() {
				unsent = append(unsent, i)
			} else {
				c.tell(i, n)
			}
			continue
		}
		switch v := verdictOn(cause); {
		case v == notSent && errors.Is(gaveUp, errUnsent):
			unsent = append(unsent, i)
		case v == notSent, v == unknownOutcome:
			if unknown == nil {
				unknown = outbox.Unavailable(c.unknown(gaveUp, cause))
				c.stop(unknown)
			}
			c.fail(i, unknown)
		case v == batchRefused:
			refused = append(refused, i)
			refusal = cause
		default:
			name := c.plan.topics[i].name
			if v == topicGone {
				c.cluster.forget(name)
			}
			c.fail(i, c.cluster.topicError(name, cause))
		}
	}
	if len(refused) > 0 {
		refused = c.refit(refused, refusal)
	}
	switch {
	case c.takenBack() && len(refused) > 0:
		// The records of a partition are refused together, and no key is in two partitions.
		c.again(unsent)
		c.search(refused, refusal)
	case errors.Is(gaveUp, errUnsent):
		// Nothing was sent, so the part is sent again without the failed messages. It is sent together and in order:
		// the refused messages fit by now, or have failed.
		c.again(append(refused, unsent...))
	case len(refused) == 1 && len(part) > 1:
		c.again(refused)
	case len(refused) > 0:
		c.search(refused, refusal)
	}
}

// search sends refused messages in two halves: the server refuses batches, and doesn't tell for which record.
func (c *call) search(refused []int32, refusal error) {
	if len(refused) == 1 {
		i := refused[0]
		if tooLarge(refusal) {
			c.cluster.learn(c.plan.topics[i], c.size(i, c.plan.topics[i]))
		}
		c.fail(i, outbox.Permanent(c.refusal(i, refusal)))
		return
	}
	half := len(refused) / 2
	c.again(refused[:half])
	c.again(refused[half:])
}

// again delivers part, which was not sent or was refused because of some message in it.
func (c *call) again(part []int32) {
	if len(part) == 0 {
		return
	}
	slices.Sort(part)
	if c.spent.Spend(1) {
		c.deliver(part)
		return
	}
	for _, i := range part {
		c.fail(i, search.ErrUndecided)
	}
}

func (c *call) refusal(i int32, cause error) error {
	if cause == nil {
		cause = errUnsent
	}
	return fmt.Errorf("kafka: topic %q refuses the record: %w", c.plan.topics[i].name, cause)
}

// refit returns the refused messages that fit into their topics, and fails the others. If size was the reason, it looks
// up the limits again.
func (c *call) refit(refused []int32, cause error) []int32 {
	if !tooLarge(cause) {
		return refused
	}
	return slices.DeleteFunc(refused, func(i int32) bool {
		c.refresh(i)
		if err := c.unfit(i); err != nil {
			c.fail(i, err)
			return true
		}
		return false
	})
}

// unknown describes why outcomes are unknown.
func (c *call) unknown(gaveUp, cause error) error {
	if gaveUp != nil && !errors.Is(gaveUp, errUnsent) {
		return c.gaveUp(gaveUp)
	}
	return c.cluster.down(cause)
}
