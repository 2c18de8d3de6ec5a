// Package lanes runs handlers for the consumers of all brokers: in parallel, in order per key, with attempts, policies
// and a regular end. A consumer adds the messages that it receives to a group, and is told once for each message what
// to tell the broker.
package lanes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Delivery is a received message.
type Delivery struct {
	Message outbox.Message
	Err     error  // why it could not be read; Message has what could be read
	Source  string // see consume.Poison

	// Attempts is how often it was delivered before, if the broker counts that. It doesn't count for a message with a
	// key: attempts are made here, and such a message comes again for other reasons.
	Attempts int

	// Settle tells the broker the outcome: Done (also for a message that was parked), Returned, Later or Rejected. It
	// is called once, by any goroutine. pause is for Later. An error means that the broker will deliver it again.
	Settle func(o consume.Outcome, pause time.Duration) error
}

// Abilities are what a broker can do with a message that isn't acknowledged.
type Abilities struct {
	Later  bool // deliver it again after a pause
	Reject bool
}

// Engine runs the handlers of one consumer.
type Engine struct {
	cfg     consume.Config
	handler consume.Handler
	can     Abilities
	slots   chan struct{}
	hung    atomic.Int64
	failed  chan error // has room for one error
}

// New completes cfg, the field Handling of a consumer's configuration, and notes all its faults; then it returns nil.
// conn is the logger of the consumer's connection, for a cfg without one.
func New(all *settings.Faults, cfg *consume.Config, conn *slog.Logger, handler consume.Handler, can Abilities) *Engine {
	var faults settings.Faults
	faults.Need(handler != nil, "", "there is no handler")
	settings.Within(&faults, "Parallel", &cfg.Parallel, 8, 1, 100_000)
	settings.Within(&faults, "MaxInFlight", &cfg.MaxInFlight, 500, 1, 100_000)
	settings.Within(&faults, "Attempts", &cfg.Attempts, 5, 1, 100_000)
	settings.Positive(&faults, "Timeout", &cfg.Timeout, time.Minute)
	settings.Positive(&faults, "Grace", &cfg.Grace, 10*time.Second)
	settings.Positive(&faults, "Backoff", &cfg.Backoff, 100*time.Millisecond)
	settings.AtLeast(&faults, "MaxBackoff", &cfg.MaxBackoff, 30*time.Second, cfg.Backoff)
	settings.Positive(&faults, "DrainTimeout", &cfg.DrainTimeout, 20*time.Second)
	settings.Default(&cfg.Policy, consume.Block)
	switch cfg.Policy {
	case consume.Block, consume.Park:
	case consume.Reject:
		faults.Need(can.Reject, "Policy", "policy reject: this broker can't dead-letter by itself; use %q or %q",
			consume.Park, consume.Block)
	default:
		faults.Need(false, "Policy", "%q: use %q, %q or %q", cfg.Policy, consume.Block, consume.Park, consume.Reject)
	}
	faults.Need((cfg.Policy == consume.Park) == (cfg.Park != nil), "Park", "the policy park and the function Park need each other")
	cfg.Logger = settings.Logger(cmp.Or(cfg.Logger, conn))
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	if err := faults.Err(); err != nil {
		all.Add("Handling", err)
		return nil
	}
	return &Engine{cfg: *cfg, handler: handler, can: can, slots: make(chan struct{}, cfg.Parallel), failed: make(chan error, 1)}
}

// Run runs a consumer, and the functions that are configured to run beside it.
func (e *Engine) Run(ctx context.Context, consume func(context.Context) error) error {
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	errs := make([]error, len(e.cfg.Beside)+1)
	var beside sync.WaitGroup
	for i, run := range e.cfg.Beside {
		beside.Go(func() { errs[i+1] = run(lasting) })
	}
	errs[0] = consume(ctx)
	stop()
	beside.Wait()
	return errors.Join(errs...)
}

// Failed receives the reason why the consumer can't continue.
func (e *Engine) Failed() <-chan error { return e.failed }

// Hung returns an error if handlers that were given up are still running.
func (e *Engine) Hung() error {
	if n := e.hung.Load(); n > 0 {
		return fmt.Errorf("%d %w; end the process", n, consume.ErrHung)
	}
	return nil
}

// Decode completes the message of d as configured, after the broker's own fields have been read.
func (e *Engine) Decode(d *Delivery) {
	if e.cfg.Decode != nil && (d.Err == nil || errors.Is(d.Err, ErrForeign)) {
		d.Err = e.cfg.Decode(&d.Message)
	} else if errors.Is(d.Err, ErrForeign) {
		d.Err = nil // the handler's inbox may identify it by a key of its own
	}
	if d.Err != nil {
		d.Err = fmt.Errorf("%w: %w", consume.ErrUnreadable, d.Err)
	}
}

// ErrForeign means that a record has no id of ours: another program has written it, or it has a format.
var ErrForeign = errors.New("the record has no message id")

// process tries a message until its outcome is known.
func (e *Engine) process(g *Group, d *Delivery, ordered bool) (consume.Outcome, time.Duration) {
	failures, pauses, tries := d.Attempts, 0, 0
	for {
		err := d.Err
		if err == nil {
			if !g.acquire(e.slots) {
				return consume.Returned, 0
			}
			tries++
			err = e.attempt(g, d, tries)
		} else {
			err = outbox.Permanent(err)
		}
		switch {
		case err == nil:
			return consume.Done, 0
		case g.hard.Err() != nil:
			return consume.Returned, 0 // it was interrupted: not the message's fault
		}
		var wait time.Duration
		var early interface{ TooEarly() bool }
		if e.can.Later && errors.As(err, &early) && early.TooEarly() {
			// The message may wait for one that comes after it, which would wait for it here. At the broker it blocks
			// no other message.
			return consume.Later, e.cfg.MaxBackoff / 10
		}
		if outbox.IsUnavailable(err) {
			pauses++
			wait = max(e.pause(pauses), min(outbox.RetryDelay(err), e.cfg.MaxBackoff))
			e.log(slog.LevelWarn, "message has to wait", d, err, "pause", wait)
		} else {
			if d.Err == nil {
				failures++
			}
			if outbox.IsPermanent(err) || failures >= e.cfg.Attempts {
				if outcome := e.poison(g, d, err, failures-d.Attempts); outcome != "" {
					return outcome, 0
				}
				wait = e.cfg.MaxBackoff // it blocks its key
				g.outlive(err)
			} else {
				wait = max(e.pause(failures), min(outbox.RetryDelay(err), e.cfg.MaxBackoff))
				e.log(slog.LevelWarn, "message failed", d, err, "attempt", failures, "pause", wait)
				if !ordered && e.can.Later {
					return consume.Later, wait
				}
			}
		}
		if !g.wait(wait) {
			return consume.Returned, 0
		}
	}
}

// poison applies the policy; "" if the message has to be tried again.
func (e *Engine) poison(g *Group, d *Delivery, err error, attempts int) consume.Outcome {
	switch e.cfg.Policy {
	case consume.Reject:
		e.log(slog.LevelError, "message rejected", d, err, "attempt", attempts)
		return consume.Rejected
	case consume.Park:
		for tries := 1; ; tries++ {
			parkErr := guarded(func() error {
				ctx, cancel := context.WithTimeout(g.hard, e.cfg.Timeout)
				defer cancel()
				return e.cfg.Park(ctx, consume.Poison{Message: &d.Message, Err: err, Attempts: attempts, Source: d.Source})
			})
			if parkErr == nil {
				e.log(slog.LevelError, "message parked", d, err, "attempt", attempts)
				return consume.Parked
			}
			e.log(slog.LevelError, "message could not be parked", d, parkErr)
			if !g.wait(e.pause(tries)) {
				return consume.Returned
			}
		}
	}
	e.log(slog.LevelError, "message blocks its key", d, err, "attempt", attempts, "pause", e.cfg.MaxBackoff)
	return ""
}

// attempt runs the handler once, in a slot that it releases.
func (e *Engine) attempt(g *Group, d *Delivery, number int) error {
	began := time.Now()
	err := e.run(g, d)
	e.cfg.Observer.Handled(consume.Attempt{Message: &d.Message, Number: number, Err: err, Took: time.Since(began)})
	return err
}

// run calls the handler. A handler that ignores its context is left behind; what its inbox has not committed by then is
// rolled back.
func (e *Engine) run(g *Group, d *Delivery) error {
	ctx, cancel := context.WithTimeout(g.hard, e.cfg.Timeout)
	defer cancel()
	msg := d.Message // a handler that was left behind must have a message of its own
	result := make(chan error, 1)
	go func() {
		err := errGone
		defer func() { result <- err }() // even if the handler ends its goroutine
		err = guarded(func() error { return e.handler(ctx, &msg) })
	}()
	defer func() { <-e.slots }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	timer := time.NewTimer(e.cfg.Grace)
	defer timer.Stop()
	select {
	case err := <-result:
		return err
	case <-timer.C:
	}
	return outbox.Permanent(e.leaveBehind(result))
}

var errGone = errors.New("the handler ended its goroutine")

// hung is the error of a handler that was left behind.
type hung struct {
	text  string
	ended chan struct{} // closed when it has returned at last
}

func (h *hung) Error() string { return h.text }
func (h *hung) Unwrap() error { return context.DeadlineExceeded }

func (e *Engine) leaveBehind(result <-chan error) error {
	if n := e.hung.Add(1); n >= int64(e.cfg.Parallel) {
		select {
		case e.failed <- fmt.Errorf("%d %w; end the process and start it again", n, consume.ErrHung):
		default: // the channel already has an error
		}
	}
	h := &hung{fmt.Sprintf("the handler hangs: it has not returned %v after its time of %v was over", e.cfg.Grace, e.cfg.Timeout),
		make(chan struct{})}
	go func() {
		<-result
		e.hung.Add(-1)
		close(h.ended)
	}()
	return h
}

// pause is the n-th pause of a backoff, between half of it and all of it, so that messages that failed together don't
// come back together.
func (e *Engine) pause(n int) time.Duration {
	d := e.cfg.MaxBackoff
	if shift := n - 1; shift < 30 {
		d = min(e.cfg.Backoff<<max(shift, 0), e.cfg.MaxBackoff)
	}
	if d <= 0 {
		d = e.cfg.MaxBackoff
	}
	return d/2 + rand.N(d/2+1)
}

func (e *Engine) log(level slog.Level, text string, d *Delivery, err error, more ...any) {
	args := append(printed.Message(&d.Message), "source", d.Source, "error", err)
	e.cfg.Logger.Log(context.Background(), level, text, append(args, more...)...)
}

// guarded turns a panic into an error.
func guarded(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("the handler panicked: %v", value)
		}
	}()
	return f()
}

// Reconnect calls connected repeatedly until ctx ends. connected consumes over one connection until that ends. The
// pauses between calls grow while connections are short. Reconnect returns Hung, and ends early when connected returns
// ErrHung or, if that isn't nil, fatal.
func (e *Engine) Reconnect(ctx context.Context, logger *slog.Logger, fatal error, connected func(context.Context) error) error {
	for failures := 0; ctx.Err() == nil; {
		began := time.Now()
		err := connected(ctx)
		if errors.Is(err, consume.ErrHung) || fatal != nil && errors.Is(err, fatal) {
			return errors.Join(err, e.Hung())
		}
		if ctx.Err() != nil {
			break
		}
		logger.Warn("the connection of the consumer ended", "error", err)
		if failures++; time.Since(began) > time.Minute {
			failures = 0
		}
		select {
		case <-time.After(min(100*time.Millisecond<<min(failures, 10), 5*time.Second)):
		case <-ctx.Done():
		}
	}
	return e.Hung()
}
