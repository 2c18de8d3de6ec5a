package relay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Run delivers until ctx ends; then it takes nothing new in, waits for what is in flight (at most
// DrainTimeout), settles it, gives the lease back and returns nil. It comes back earlier, with an error, only for the
// policy Stop, and for an error of the source that only another configuration of this program cures: see [Final]. A
// call that hangs when DrainTimeout and Grace have passed is left behind: see [ErrHung]. A relay, and a source, is for
// one Run at a time: see [ErrActive].
//
// Any other error ends a session, not Run: it acquires again and goes on where the last settlement stands. Somebody can
// give a right back, repair a table or let a role log in while the relay runs, and then it delivers by itself.
func (r *Relay) Run(ctx context.Context) (err error) {
	if !r.active.CompareAndSwap(false, true) {
		return outbox.Permanent(fmt.Errorf("destination %s: the relay is %w", r.cfg.Name, ErrActive))
	}
	defer r.active.Store(false)
	state := tracker{relay: r}
	defer func() { state.change(StateStopped, err) }()
	defer settings.Flush(r.cfg.Logger)
	var failures int
	for {
		state.change(StateWaiting, nil)
		session, err := r.source.Acquire(ctx)
		acquired := err == nil
		if acquired {
			r.cfg.Logger.Info("lease acquired", "destination", r.cfg.Name)
			started := time.Now()
			err = r.serve(ctx, session, &state)
			if time.Since(started) > usualPause {
				failures = 0
			}
		}
		var end *ended
		switch {
		case errors.As(err, &end):
			return end.err
		case ctx.Err() != nil:
			if acquired {
				r.cfg.Logger.Warn("session ended while it drained; what was in flight will be delivered again",
					"destination", r.cfg.Name, "error", err)
			}
			return nil
		case isFinal(err):
			return fmt.Errorf("destination %s: %w", r.cfg.Name, err)
		case errors.Is(err, ErrLeaseLost) && !outbox.IsPermanent(err):
			r.cfg.Logger.Warn("lease lost", "destination", r.cfg.Name)
			continue
		}
		if state.unsettled = nil; errors.Is(err, errUnsettled) {
			state.unsettled = err
		}
		failures++
		wait := Backoff{Initial: 100 * time.Millisecond, Max: pauseAfter(err)}.delay(failures, rand.Float64())
		r.cfg.Logger.Error("session ended, acquiring again", "destination", r.cfg.Name, "error", err, "pause", wait)
		state.change(StateBroken, err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// ended is what serve returns when Run is over: because of err, or as asked for.
type ended struct{ err error }

func (e *ended) Error() string { return fmt.Sprint("relay ended: ", e.err) }

// serve runs one session. It returns *ended, or the error that broke the session; nothing of it runs any
// more then.
func (r *Relay) serve(ctx context.Context, session Session, state *tracker) error {
	// Work outlives ctx by the drain; stop ends it, and interrupt the statements.
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	statements, interrupt := context.WithCancel(context.WithoutCancel(ctx))
	defer interrupt()
	core, traits := r.cfg.core(), r.source.Traits()
	if traits.ShowsFailures {
		core.HoldAfter = 0
	}
	core.HeldLanes = max(traits.HoldLanes, 1)
	if traits.Receipt != nil {
		work = outbox.WithReceipts(work, traits.Receipt)
	}
	l := &loop{
		relay:   r,
		session: session,
		state:   state,
		core:    newCore(core, rand.Float64),
		// There is room for all, so that what comes back after the end doesn't wait: a call for each stripe, a read,
		// a settlement or query, a probe, a look at which broker it is.
		events:     make(chan event, core.Stripes+4),
		running:    make(map[string]int),
		callLimits: slices.Repeat([]int{math.MaxInt}, core.Stripes),
		calls:      make(map[int]time.Time),
		work:       work,
		started:    time.Now(),

		statements: statements,
	}
	l.ping.pinger, _ = As[Pinger](r.broker)
	l.recognition.identifier, _ = As[Identifier](r.broker)
	l.intake, l.closeIntake = context.WithCancel(work)
	err := l.run(ctx)
	stop(err)
	l.closeIntake()
	defer time.AfterFunc(r.cfg.Grace/2, interrupt).Stop()
	hung := l.wait(ctx, err)
	if hung != nil && l.abandoned == nil {
		l.abandonLease() // what hangs may still be published, so the lease isn't given back
	}
	switch {
	case hung != nil:
		select {
		case <-l.abandoned:
		case <-time.After(r.cfg.Grace):
		}
		return &ended{hung}
	case l.abandoned != nil:
		<-l.abandoned
		return err
	}

	// A lost lease needs no giving back, and the connection may be why the session broke: be brief.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if closeErr := session.Close(closing); closeErr != nil && !errors.Is(closeErr, ErrLeaseLost) {
		r.cfg.Logger.Debug("session closed badly", "destination", r.cfg.Name, "error", closeErr)
	}
	return err
}

func (l *loop) run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var deadline <-chan time.Time
	done := ctx.Done()
	for {
		now := time.Now()
		if now.After(l.session.Expires()) {
			return ErrLeaseLost
		}
		next := l.core.next(now)
		l.start(next)
		lookAt := l.recognize(now)
		probeAt := l.startPing(now)
		hangsAt := l.watchOutage(time.Now())
		if next.Drained {
			return &ended{err: next.Err}
		}
		timer.Reset(untilWake(now, next.Wake, lookAt, probeAt, hangsAt, l.session.Expires()))
		select {
		case e := <-l.events:
			l.returned(e)
			e.apply()
		case <-timer.C:
		case <-done:
			done = nil
			l.core.drain()
			l.closeIntake()
			deadline = time.After(l.relay.cfg.DrainTimeout)
		case <-deadline:
			l.relay.cfg.Logger.Warn("drain timed out; what is in flight will be delivered again", "destination", l.relay.cfg.Name)
			return &ended{}
		}
		if l.broken != nil {
			return l.broken
		}
	}
}

// untilWake is how long to sleep: to the earliest of the times that aren't zero.
func untilWake(now time.Time, times ...time.Time) time.Duration {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return max(first.Sub(now), 0)
}

// wait lets everything that was started come back, after the session has ended because of err. Its results no longer
// count. While ctx lasts, it waits for what hangs: to end such a call is up to the adapter's timeouts. The state says
// so, and the lease is left, so that another relay takes over. When ctx has ended, calls have Grace to return; the
// others are left behind, and the error names them.
func (l *loop) wait(ctx context.Context, err error) error {
	done, late := ctx.Done(), time.After(hangsAfter)
	var grace <-chan time.Time
	hangs := false
	for len(l.running) > 0 {
		if hangs && l.abandoned == nil && !l.usesSession() {
			l.abandonLease()
		}
		select {
		case e := <-l.events:
			l.returned(e)
		case <-late:
			if hangs = ctx.Err() == nil; hangs {
				l.reportWait(err)
			}
		case <-done:
			done = nil
			grace = time.After(l.relay.cfg.Grace)
		case <-grace:
			return l.hung()
		}
	}
	return nil
}

// reportWait tells that a session has ended because of err, and that the next one waits for calls of it.
func (l *loop) reportWait(err error) {
	l.relay.cfg.Logger.Error("session ended, the next waits for calls that hang", "destination", l.relay.cfg.Name,
		"error", err, "calls", l.calling())
	if l.running["Broker.Publish"] > 0 {
		l.state.change(StateStalled, errHangs)
	} else {
		l.state.change(StateBroken, err)
	}
}

// abandonLease ends the session and doesn't give the lease back: it isn't renewed any more. What hangs may still be
// published, as by a relay that has lost its lease.
func (l *loop) abandonLease() {
	l.abandoned = make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	go func() { _ = l.session.Close(ctx); close(l.abandoned) }()
}

func (l *loop) hung() error {
	return fmt.Errorf("destination %s: %s: %w by %v; their goroutines stay, and the lease isn't given back, because what hangs "+
		"may still happen: end the process", l.relay.cfg.Name, l.calling(), ErrHung, l.relay.cfg.Grace)
}

// start performs the actions.
func (l *loop) start(r ready) {
	if r.Read > 0 {
		l.do("Session.Next", func() func() {
			batch, err := l.session.Next(l.intake, r.Read)
			return func() {
				if err != nil {
					if l.intake.Err() == nil {
						l.fail(fmt.Errorf("read messages: %w", err))
					}
					batch = Batch{}
				}
				l.core.onRead(time.Now(), batch)
			}
		})
	}
	l.publishAll(r.Publish)
	if s := r.Settle; s != nil {
		l.do("Session.Settle", func() func() {
			err := l.session.Settle(l.statements, *s)
			return func() {
				if err != nil {
					l.fail(fmt.Errorf("%w: %w", errUnsettled, err))
					return
				}
				l.state.unsettled = nil
				l.logSettled(s)
				l.relay.observe(func() { l.relay.cfg.Observer.Settled(s) })
				l.core.onSettled(time.Now())
			}
		})
	}
	if r.Controls {
		l.do("Session.Controls", func() func() {
			controls, err := l.session.Controls(l.statements)
			return func() {
				if err != nil {
					l.fail(fmt.Errorf("read the controls: %w", err))
					return
				}
				if l.core.onControls(time.Now(), controls) {
					l.relay.cfg.Logger.Info("operators ask", "destination", l.relay.cfg.Name,
						"pauses", len(controls.Pauses), "rate", controls.Rate)
				}
			}
		})
	}
	if q := r.Lanes; q != nil {
		l.do("Session.Lanes", func() func() {
			lanes, next, err := l.session.Lanes(l.statements, q.After, q.Limit)
			return func() {
				if err != nil {
					l.fail(fmt.Errorf("list holds: %w", err))
					return
				}
				l.core.onLanes(time.Now(), lanes, next)
			}
		})
	}
	if q := r.Due; q != nil {
		l.do("Session.Due", func() func() {
			lanes, err := l.session.Due(l.statements, *q)
			return func() {
				if err != nil {
					l.fail(fmt.Errorf("list holds that are due: %w", err))
					return
				}
				l.core.onDue(time.Now(), lanes)
			}
		})
	}
	if q := r.Held; q != nil {
		l.do("Session.Held", func() func() {
			held, err := l.session.Held(l.statements, q.Lanes, q.Limit)
			return func() {
				if err != nil {
					l.fail(fmt.Errorf("read holds: %w", err))
					return
				}
				l.core.onHeld(time.Now(), q.Lanes, held)
			}
		})
	}
}
