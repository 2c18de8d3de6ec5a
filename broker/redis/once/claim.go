package once

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/printed"
)

// claim is the right to run the handler of a message. Its note in Redis holds a token that is unique to this claim, or
// "done".
type claim struct {
	cache *Cache
	key   string
	token string
	msg   *outbox.Message
	began time.Time // no later than the time of the note
}

const (
	answerDone    = "done"
	answerBusy    = "busy"
	answerClaimed = "claimed"
)

// Each script is atomic. A note with our own token is ours, so a lost answer, or a request that the client has sent
// again, changes nothing.
var (
	takeScript = redis.NewScript(`local note = redis.call('GET', KEYS[1])
if note == 'done' then return 'done' end
if note and note ~= ARGV[1] then return 'busy' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 'claimed'`)

	// If the note is gone, as after a server has lost its data, it is made again unless another consumer was faster.
	renewScript = takeScript

	// The effect has happened, even if another process has the claim by now.
	markScript = redis.NewScript(`redis.call('SET', KEYS[1], 'done', 'PX', ARGV[1]) return 'done'`)

	releaseScript = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end return 'released'`)
)

func (c *claim) take(ctx context.Context) (string, error) {
	c.began = time.Now()
	answer, err := c.ask(ctx, takeScript, c.token, c.cache.cfg.Lease.Milliseconds())
	if err != nil {
		return "", outbox.Unavailable(fmt.Errorf("claim: %w", err))
	}
	return answer, nil
}

func (c *claim) ask(ctx context.Context, script *redis.Script, args ...any) (string, error) {
	answer, err := script.Run(ctx, c.cache.client, []string{c.key}, args...).Text()
	if err != nil {
		return "", fmt.Errorf("redis: %w", err)
	}
	return answer, nil
}

// run calls the handler while the claim can be kept.
func (c *claim) run(ctx context.Context, fn Handler) error {
	if t := c.cache.cfg.Timeout; t > 0 {
		timed, cancel := context.WithTimeout(ctx, t)
		defer cancel()
		ctx = timed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var keeping sync.WaitGroup
	defer keeping.Wait()
	defer cancel(nil)
	keeping.Go(func() { c.keep(ctx, cancel) })
	err := guarded(func() error { return fn(ctx, c.msg) })
	if lost := context.Cause(ctx); err != nil && errors.Is(lost, ErrLost) {
		return outbox.Unavailable(fmt.Errorf("%w: %w", lost, err))
	}
	return err
}

// keep renews the claim until ctx ends, and ends ctx if another consumer has the claim, or may have it.
func (c *claim) keep(ctx context.Context, cut context.CancelCauseFunc) {
	lease := c.cache.cfg.Lease
	tick := time.NewTicker(lease / 3)
	defer tick.Stop()
	kept := c.began
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		asked := time.Now()
		asking, cancel := context.WithDeadline(ctx, kept.Add(lease))
		answer, err := c.ask(asking, renewScript, c.token, lease.Milliseconds())
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && answer == answerClaimed:
			kept = asked
			continue
		case err == nil: // another consumer is busy with it, or has done it
			c.log("claim lost", ErrLost)
			cut(ErrLost)
			return
		case time.Since(kept) >= lease:
			c.log("claim not renewed", err)
			cut(fmt.Errorf("%w: %w", ErrLost, err))
			return
		}
	}
}

// cleanUp bounds the work after the handler has returned.
const cleanUp = 5 * time.Second

// mark notes that the effect has happened. It retries for a while, because without the mark a repeat has the effect
// again.
func (c *claim) mark(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	for {
		_, err := c.ask(ctx, markScript, c.cache.cfg.Window.Milliseconds())
		if err == nil {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
			continue
		case <-ctx.Done():
			c.log("effect not noted: it happens again if the message comes again", err)
			return
		}
	}
}

// release lets other consumers try at once. If it fails, they wait until the lease ends.
func (c *claim) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	if _, err := c.ask(ctx, releaseScript, c.token); err != nil {
		c.log("claim not released: it expires by itself", err)
	}
}

func (c *claim) log(text string, err error) {
	args := append(printed.Message(c.msg), "consumer", c.cache.consumer, "error", err)
	if dedup, ok := strings.CutPrefix(c.key, c.cache.cfg.Prefix+c.cache.consumer+":key:"); ok {
		args = append(args, "dedup_key", printed.Key(dedup))
	}
	c.cache.cfg.Logger.Warn(text, args...)
}
