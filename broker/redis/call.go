package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/search"
	"github.com/redis/go-redis/v9"
)

// portionBytes is how much is sent at once to a node; Config.AckTimeout bounds the wait for its answer.
const portionBytes = 4 << 20

// indexExpiry is how long the ids of a stream are kept after its last message.
const indexExpiry = 30 * 24 * time.Hour

// call is one Publish. It belongs to one goroutine, except that the goroutines of run each own a node's chunks while
// they run.
type call struct {
	b     *Broker
	batch []*outbox.Message
	errs  []error // nil until a message fails
	plan  *plan
	lost  map[int]bool // lanes that have a message that failed on a server
	name  string       // unique to this call: a script distinguishes its call's messages by it
	mu    sync.Mutex   // errs and lost, while several nodes are queried

	formatted formatted // empty without a format
	spent     search.Budget
}

// prepare plans the batch, and settles messages that can't be sent.
func (c *call) prepare() {
	for i, m := range c.batch {
		l := c.plan.lane(m)
		if l != nil && l.failed {
			c.settle(i, outbox.ErrSkipped)
			continue
		}
		stream, err := streamOf(c.b.streams, m)
		size := 0
		switch {
		case err != nil:
		case c.b.cfg.records != nil:
			size, err = c.format(i, m)
		default:
			size = sizeOf(m)
		}
		if err == nil && size > c.b.cfg.MaxMessageBytes {
			err = outbox.Permanent(fmt.Errorf("redis: the message takes %d bytes with all its fields, and at most %d are allowed",
				size, c.b.cfg.MaxMessageBytes))
		}
		if _, same := indexName(stream); err == nil && !same && c.b.cfg.Cluster && c.b.cfg.DedupWindow > 0 {
			err = outbox.Permanent(fmt.Errorf("redis: stream %q has braces that are no hash tag: its index would be on "+
				"another node; change the message's topic", stream))
		}
		if err != nil {
			c.settle(i, err)
			if l != nil {
				l.failed = true
			}
			continue
		}
		c.plan.add(int32(i), l, stream, size)
	}
}

// run sends the waves one after another.
func (c *call) run(ctx context.Context) {
	c.name = fmt.Sprintf("%s %d", c.b.name, c.b.calls.Add(1))
	for _, wave := range c.plan.waves {
		var asking sync.WaitGroup
		for node, chunks := range c.byNode(ctx, wave) {
			asking.Go(func() { c.ask(ctx, node, chunks) })
		}
		asking.Wait()
	}
}

// byNode deals chunks to the nodes that have their streams, and leaves out messages that may no longer be sent.
func (c *call) byNode(ctx context.Context, wave []*chunk) map[*redis.Client][]*chunk {
	nodes := make(map[*redis.Client][]*chunk, 1)
	for _, ch := range wave {
		c.dropLost(ch)
		if len(ch.messages) == 0 {
			continue
		}
		node, err := c.b.node(ctx, ch.stream)
		if err != nil {
			c.failAll(ch, outbox.Unavailable(fmt.Errorf("redis: find the node of stream %q: %w (not sent)", ch.stream, err)))
			continue
		}
		nodes[node] = append(nodes[node], ch)
	}
	return nodes
}

// dropLost removes from ch the messages whose lanes failed in an earlier wave.
func (c *call) dropLost(ch *chunk) {
	if len(c.lost) == 0 {
		return
	}
	kept := ch.messages[:0]
	for _, i := range ch.messages {
		if c.lost[c.plan.of[i]] {
			c.settle(int(i), outbox.ErrSkipped)
		} else {
			kept = append(kept, i)
		}
	}
	ch.messages = kept
}

// ask sends chunks to one node, a portion at a time. After a portion without an answer it sends nothing more.
func (c *call) ask(ctx context.Context, node *redis.Client, chunks []*chunk) {
	for len(chunks) > 0 {
		n, bytes := 1, chunks[0].bytes
		for n < len(chunks) && bytes+chunks[n].bytes <= portionBytes && !chunks[n-1].large() && !chunks[n].large() {
			bytes += chunks[n].bytes
			n++
		}
		err := c.portion(ctx, node, chunks[:n])
		chunks = chunks[n:]
		if err != nil {
			for _, ch := range chunks {
				c.failAll(ch, outbox.Unavailable(fmt.Errorf("%w (not sent)", err)))
			}
			return
		}
	}
}

// portion sends chunks at once and judges the answers. An error means that answers are missing.
func (c *call) portion(ctx context.Context, node *redis.Client, chunks []*chunk) error {
	cmds := make([]redis.Cmder, 0, len(chunks)+1)
	for _, ch := range chunks {
		cmds = append(cmds, redis.NewCmd(ctx, c.arguments(ch)...))
	}
	confirm := c.b.confirmation(ctx)
	if confirm != nil {
		cmds = append(cmds, confirm)
	}
	if err := c.b.exec(ctx, node, cmds); err != nil {
		// The commands may still be in use by their sender.
		outcome := "not sent"
		if errors.Is(err, errGivenUp) {
			outcome = "outcome unknown"
		}
		for _, ch := range chunks {
			c.failAll(ch, outbox.Unavailable(fmt.Errorf("%w (%s)", err, outcome)))
		}
		return err
	}
	if err := cmds[0].Err(); err != nil && chunks[0].large() {
		switch tooLarge, forbidden := c.overLimit(ctx, node, err, chunks[0]); {
		case tooLarge:
			return c.divide(ctx, node, chunks[0], err)
		case forbidden:
			cmds[0].SetErr(fmt.Errorf("%w; the command has %d bytes in one argument, and this user may not ask for the server's limit "+
				"(CONFIG GET proto-max-bulk-len): if that is less, raise it, or set MaxMessageBytes below it", err, chunks[0].packed))
		}
	}
	var silent error
	for k, ch := range chunks {
		if err := cmds[k].Err(); err != nil && !isAnswer(err) {
			silent = noAnswer(err)
			c.failAll(ch, outbox.Unavailable(fmt.Errorf("%w (outcome unknown)", silent)))
			continue
		}
		c.judge(ch, cmds[k].(*redis.Cmd), confirm)
	}
	return silent
}

// leastBulk is the least that a server can be set to take as one argument (proto-max-bulk-len).
const leastBulk = 1 << 20

// large reports whether a server may find c too large. Such a chunk is a portion of its own: the server closes the
// connection because of it.
func (c *chunk) large() bool { return c.bytes > leastBulk-leastBulk/8 }

// overLimit reports whether err is because ch is larger than the server takes. It says so, and closes the connection
// while the rest is on its way, which may lose what it has said. So the server is asked for its limit; where that is
// forbidden it stays unknown, and MaxMessageBytes has to be set.
func (c *call) overLimit(ctx context.Context, node *redis.Client, err error, ch *chunk) (tooLarge, forbidden bool) {
	if isAnswer(err) && !ofSize(err.Error()) {
		return false, false
	}
	// The library keeps a connection that has brought an answer, though the server is closing it: this finds out.
	var ask *redis.Cmd
	for range 3 {
		ask = redis.NewCmd(ctx, "CONFIG", "GET", "proto-max-bulk-len")
		if c.b.exec(ctx, node, []redis.Cmder{ask}) != nil {
			return false, false
		}
		if ask.Err() == nil || isAnswer(ask.Err()) {
			break
		}
	}
	if isAnswer(err) {
		return true, false
	}
	limit := 0
	switch values := ask.Val().(type) {
	case []any: // RESP2
		if len(values) == 2 {
			limit, _ = strconv.Atoi(fmt.Sprint(values[1]))
		}
	case map[any]any:
		limit, _ = strconv.Atoi(fmt.Sprint(values["proto-max-bulk-len"]))
	}
	return limit > 0 && ch.packed > limit, isAnswer(ask.Err())
}

// divide sends the halves of a chunk that is too large. A message that is too large alone is refused.
func (c *call) divide(ctx context.Context, node *redis.Client, ch *chunk, err error) error {
	switch {
	case len(ch.messages) == 1:
		c.failAll(ch, outbox.Permanent(fmt.Errorf("redis: stream %q: the message takes %d bytes, more than the server's "+
			"proto-max-bulk-len; raise that, or write a smaller message: %w", ch.stream, ch.packed, err)))
		return nil
	case !c.spent.Spend(2):
		c.failAll(ch, search.ErrUndecided)
		return nil
	}
	half := len(ch.messages) / 2
	for n, messages := range [][]int32{ch.messages[:half], slices.Clone(ch.messages[half:])} {
		part := &chunk{stream: ch.stream, messages: messages, bytes: ch.bytes}
		c.mu.Lock()
		c.dropLost(part)
		c.mu.Unlock()
		if len(part.messages) == 0 {
			continue
		}
		if err := c.portion(ctx, node, []*chunk{part}); err != nil {
			if n == 0 {
				c.failRest(ch, err)
			}
			return err
		}
	}
	return nil
}

// failRest settles the second half of ch, which was not sent, but for the messages that have an outcome already.
func (c *call) failRest(ch *chunk, err error) {
	rest := &chunk{stream: ch.stream}
	for _, i := range ch.messages[len(ch.messages)/2:] {
		if c.errs[i] == nil {
			rest.messages = append(rest.messages, i)
		}
	}
	c.failAll(rest, outbox.Unavailable(fmt.Errorf("%w (not sent)", err)))
}

// judge settles the messages of ch by the script's answer.
func (c *call) judge(ch *chunk, cmd *redis.Cmd, confirm *redis.Cmd) {
	if err := cmd.Err(); err != nil {
		c.b.notice(err)
		c.failAll(ch, classify(answerOf(err), ch.stream))
		return
	}
	if confirm != nil {
		if err := c.b.unconfirmed(confirm); err != nil {
			c.failAll(ch, outbox.Unavailable(err))
			return
		}
	}
	answer, ok := cmd.Val().([]any)
	if !ok {
		err := errors.New("redis: the script's answer is not understood")
		if cmd.Val() == "missing" {
			err = missing(ch.stream)
		}
		c.failAll(ch, err)
		return
	}
	if len(answer) == 0 {
		return
	}
	failed := make(map[int]error, len(answer)/2)
	for k := 0; k+1 < len(answer); k += 2 {
		position, _ := answer[k].(int64)
		text, _ := answer[k+1].(string)
		failed[int(position)-1] = classify(errors.New(text), ch.stream)
	}
	c.fail(ch, failed)
}

// fail settles the messages of ch with the given numbers, and those behind them.
func (c *call) fail(ch *chunk, failed map[int]error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, i := range ch.messages {
		lane := c.plan.of[i]
		switch err := failed[k]; {
		case lane != 0 && c.lost[lane]:
			c.settle(int(i), outbox.ErrSkipped)
		case err != nil:
			c.settle(int(i), err)
			if lane != 0 {
				c.lost[lane] = true
			}
		}
	}
}

// failAll settles all messages of ch: the first of each lane with err, and the rest as skipped.
func (c *call) failAll(ch *chunk, err error) {
	failed := make(map[int]error, len(ch.messages))
	for k := range ch.messages {
		failed[k] = err
	}
	c.fail(ch, failed)
}

func (c *call) settle(i int, err error) {
	if c.errs == nil {
		c.errs = make([]error, len(c.batch))
	}
	c.errs[i] = err
}

// arguments returns the command that runs the script for ch.
func (c *call) arguments(ch *chunk) []any {
	index, _ := indexName(ch.stream)
	cfg := &c.b.cfg
	create := "0"
	if cfg.CreateStreams {
		create = "1"
	}
	trim, limit := "", int64(0)
	switch {
	case cfg.MaxLen > 0:
		trim, limit = "MAXLEN", cfg.MaxLen
	case cfg.MaxAge > 0:
		trim, limit = "MAXAGE", cfg.MaxAge.Milliseconds()
	}
	e := newEncoder(min(ch.bytes, fullBytes))
	for _, i := range ch.messages {
		if cfg.records != nil {
			e.record(c.batch[i], c.plan.of[i], &c.formatted.records[i])
		} else {
			e.message(c.batch[i], c.plan.of[i], ch.stream)
		}
	}
	packed := e.done()
	ch.packed = len(packed)
	return []any{
		"EVAL", script, 4, strings.Clone(ch.stream), index + recentSuffix, index + olderSuffix, index + knownSuffix,
		cfg.DedupWindow, indexExpiry.Milliseconds(), create, trim, limit, c.name, packed,
	}
}
