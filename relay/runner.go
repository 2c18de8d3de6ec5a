package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Relay delivers from one source to one broker.
type Relay struct {
	source Source
	broker Broker
	cfg    Config

	active         atomic.Bool
	observerPanics sync.Once
}

// New returns a relay that is not running yet. It reports every fault of cfg at once. The broker remains
// the caller's to close, after Run has returned.
func New(source Source, broker Broker, cfg Config) (*Relay, error) {
	if source == nil || broker == nil {
		return nil, errors.New("relay: New needs a source and a broker")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Relay{source: source, broker: broker, cfg: cfg}, nil
}

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

const (
	usualPause = 5 * time.Second // the longest between two sessions
	longPause  = time.Minute
)

// pauseAfter is the longest pause after an error. A session that begins delivers again what the one before could not
// settle. So if waiting alone doesn't cure why it could not, the pause is longer.
func pauseAfter(err error) time.Duration {
	if errors.Is(err, errUnsettled) && outbox.IsPermanent(err) {
		return longPause
	}
	return usualPause
}

// errUnsettled means that a session has ended because a settlement failed.
var errUnsettled = errors.New("settle")

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
		events:  make(chan event, core.Stripes+4),
		running: make(map[string]int),
		most:    slices.Repeat([]int{math.MaxInt}, core.Stripes),
		calls:   make(map[int]time.Time),
		work:    work,
		started: time.Now(),

		statements: statements,
	}
	l.probe.pinger, _ = As[Pinger](r.broker)
	l.recognition.identifier, _ = As[Identifier](r.broker)
	l.intake, l.closeIntake = context.WithCancel(work)
	err := l.run(ctx)
	stop(err)
	l.closeIntake()
	defer time.AfterFunc(r.cfg.Grace/2, interrupt).Stop()
	hung := l.wait(ctx, err)
	if hung != nil && l.left == nil {
		l.leave() // what hangs may still be published, so the lease isn't given back
	}
	switch {
	case hung != nil:
		select {
		case <-l.left:
		case <-time.After(r.cfg.Grace):
		}
		return &ended{hung}
	case l.left != nil:
		<-l.left
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

// loop performs what the core asks for. Only its own goroutine touches the core: everything else runs
// beside it and reports through events.
type loop struct {
	relay   *Relay
	session Session
	state   *tracker
	core    *core
	started time.Time

	probe       probe
	recognition recognition

	events  chan event
	running map[string]int // goroutines that will still send an event, by the call that they make
	broken  error
	left    chan struct{}     // closed when the session is, without giving the lease back; nil: it isn't to be
	most    []int             // messages in a call of each stripe, see publish
	calls   map[int]time.Time // when the call of a stripe began that has not returned

	work        context.Context // publishing
	intake      context.Context // reading: ends first
	closeIntake context.CancelFunc

	// statements is for the session's other calls. It ends half of Grace after work does: a source that is interrupted
	// in a statement loses the connection, and can't give the lease back.
	statements context.Context
}

// event is the return of a call.
type event struct {
	call  string
	apply func()
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
		probeAt := l.startProbe(now)
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
		if hangs && l.left == nil && !l.usesSession() {
			l.leave()
		}
		select {
		case e := <-l.events:
			l.returned(e)
		case <-late:
			if hangs = ctx.Err() == nil; hangs {
				l.tellWait(err)
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

// tellWait tells that a session has ended because of err, and that the next one waits for calls of it.
func (l *loop) tellWait(err error) {
	l.relay.cfg.Logger.Error("session ended, the next waits for calls that hang", "destination", l.relay.cfg.Name,
		"error", err, "calls", l.calling())
	if l.running["Broker.Publish"] > 0 {
		l.state.change(StateStalled, errHangs)
	} else {
		l.state.change(StateBroken, err)
	}
}

// usesSession reports whether a call of the session has not returned.
func (l *loop) usesSession() bool {
	for call := range l.running {
		if strings.HasPrefix(call, "Session.") {
			return true
		}
	}
	return false
}

// leave ends the session and doesn't give the lease back: it isn't renewed any more. What hangs may still be published,
// as by a relay that has lost its lease.
func (l *loop) leave() {
	l.left = make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	go func() { _ = l.session.Close(ctx); close(l.left) }()
}

// calling names the calls that have not returned.
func (l *loop) calling() string {
	var calls []string
	for _, call := range slices.Sorted(maps.Keys(l.running)) {
		calls = append(calls, fmt.Sprintf("%s (%d)", call, l.running[call]))
	}
	return strings.Join(calls, ", ")
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

// do runs f, which makes a call, beside the loop, and what f returns in it. A call that ends its goroutine breaks the
// session.
func (l *loop) do(call string, f func() func()) {
	l.running[call]++
	go func() {
		apply := func() { l.fail(fmt.Errorf("%s has called runtime.Goexit", call)) }
		defer func() { l.events <- event{call, apply} }()
		apply = f()
	}()
}

func (l *loop) returned(e event) {
	if l.running[e.call]--; l.running[e.call] == 0 {
		delete(l.running, e.call)
	}
}

func (l *loop) fail(err error) {
	if l.broken == nil {
		l.broken = err
	}
}

// publishAll begins calls, or has them wait for the look at the broker that is due.
func (l *loop) publishAll(calls []*call) {
	r := &l.recognition
	for _, k := range calls {
		if l.calls[k.stripe].IsZero() {
			l.calls[k.stripe] = time.Now()
		}
		if !r.begun() {
			r.waiting = append(r.waiting, k)
			continue
		}
		l.do("Broker.Publish", func() func() { return l.publish(k) })
	}
}

func (l *loop) publish(k *call) func() {
	started := time.Now()
	errs := l.relay.publish(l.work, k.Batch, &l.most[k.stripe])
	ended := time.Now()
	l.relay.observe(func() { l.relay.cfg.Observer.Published(k.Batch, errs, k.age(ended), ended.Sub(started)) })
	return func() {
		delete(l.calls, k.stripe)
		l.probe.answered(time.Now())
		if slices.ContainsFunc(errs, outbox.IsUnavailable) {
			l.recognition.forget()
		}
		l.logFailures(k, errs)
		l.core.onPublished(time.Now(), k, errs)
	}
}

// age notes how long each message has been due. No age is negative, though the clocks may differ.
func (k *call) age(now time.Time) []time.Duration {
	k.ages = k.ages[:0]
	for _, m := range k.Batch {
		due := m.CreatedAt
		if m.DeliverAt.After(due) {
			due = m.DeliverAt
		}
		k.ages = append(k.ages, max(now.Sub(due), 0))
	}
	return k.ages
}

// hangsAfter is how long a call to the broker may last before the state says so. The call goes on: how long it may last
// is up to the adapter.
const hangsAfter = 5 * time.Second

var errHangs = fmt.Errorf("a call to the broker has not returned for %v; the keys of its messages wait for the answer", hangsAfter)

// hangsAt is when the first of the calls to the broker begins to hang, zero if there is none. Each is judged by itself:
// others may be answered, of other keys.
func (l *loop) hangsAt() time.Time {
	var first time.Time
	for _, began := range l.calls {
		if first.IsZero() || began.Before(first) {
			first = began
		}
	}
	if first.IsZero() {
		return first
	}
	return first.Add(hangsAfter)
}

// watchOutage tells the state when the destination, or a topic of it, stops or starts taking messages, and when
// nothing new is read because too much is set aside. It returns when it has to look again.
func (l *loop) watchOutage(now time.Time) time.Time {
	hangsAt := l.hangsAt()
	hangs := !hangsAt.IsZero() && !hangsAt.After(now)
	l.tell(hangs)
	if hangs {
		return time.Time{}
	}
	return hangsAt
}

func (l *loop) tell(hangs bool) {
	if time.Since(l.started) > usualPause {
		l.state.unsettled = nil // nothing may be left to settle
	}
	if cause := l.core.outage.cause; l.core.outage.failures > 0 {
		if l.state.change(StateStalled, cause) {
			l.relay.cfg.Logger.Warn("destination stalled, it does not answer", "destination", l.relay.cfg.Name, "error", cause)
		}
		return
	}
	if hangs {
		if l.state.change(StateStalled, errHangs) {
			l.relay.cfg.Logger.Warn("destination hangs", "destination", l.relay.cfg.Name, "error", errHangs)
		}
		return
	}
	if full := l.core.fullBecause(); full != nil {
		if l.state.change(StateFull, full) {
			l.relay.cfg.Logger.Warn("too much is set aside", "destination", l.relay.cfg.Name, "error", full)
		}
		return
	}
	if o := l.core.oldestClosed(); o != nil {
		if l.state.change(StateFailing, o.cause) {
			l.relay.cfg.Logger.Warn("topic unavailable, what goes there waits", "destination", l.relay.cfg.Name, "error", o.cause)
		}
		return
	}
	if err := l.probe.err; err != nil {
		if l.state.change(StateStalled, err) {
			l.relay.cfg.Logger.Warn("destination can't be reached", "destination", l.relay.cfg.Name, "error", err)
		}
		return
	}
	if !l.recognition.begun() {
		return // it may be another broker than the destination's
	}
	if l.state.change(StateFlowing, nil) {
		l.relay.cfg.Logger.Info("destination flowing", "destination", l.relay.cfg.Name)
	}
}

// logFailures names the messages that the broker refused; outages, of topics too, are logged by watchOutage.
func (l *loop) logFailures(k *call, errs []error) {
	for i, err := range errs {
		if err == nil || outbox.IsUnavailable(err) || outbox.IsTopicUnavailable(err) || errors.Is(err, outbox.ErrSkipped) {
			continue
		}
		l.relay.cfg.Logger.Warn("message not accepted", append(about(k.items[i].d),
			"destination", l.relay.cfg.Name, "attempt", k.items[i].d.Attempts+1, "error", err)...)
	}
}

func (l *loop) logSettled(s *Settlement) {
	log := func(what string, d *Delivery, blocked bool, more ...any) {
		line := append(append(about(d), "destination", l.relay.cfg.Name), more...)
		if next := l.relay.cfg.Remedy; next != nil {
			var text any
			if panicked := try("Remedy", func() { text = next(d, blocked) }); panicked != nil {
				text = panicked
			}
			line = append(line, "next", text)
		}
		l.relay.cfg.Logger.Error(what, line...)
	}
	for _, list := range [][]Dead{s.Dead, s.HeldDead} {
		for _, d := range list {
			log("dead letter", d.Delivery, false, "reason", string(d.Reason), "error", d.Err)
		}
	}
	for _, list := range [][]Hold{s.Hold, s.HeldRetry} {
		for _, h := range list {
			if h.Blocked && !h.Delivery.Blocked { // not if an earlier session has told it
				log("key blocked", h.Delivery, true, "attempts", h.Delivery.Attempts, "error", h.Err)
			}
		}
	}
}

// about is what a log line says of a message, and of the row that it is.
func about(d *Delivery) []any {
	line := printed.Message(&d.Message)
	if d.Row != "" {
		line = append(line, "row", strings.Clone(printed.Key(d.Row)))
	}
	if d.DedupKey != "" {
		line = append(line, "dedup_key", strings.Clone(printed.Key(d.DedupKey)))
	}
	return line
}

// tracker reports changes of state, and only changes.
type tracker struct {
	relay *Relay
	state State
	cause string

	unsettled error // why the last session could not settle, until this one can
}

// change notes the state. A relay whose settlements fail stays broken, whatever its broker answers meanwhile.
func (t *tracker) change(state State, err error) bool {
	if t.unsettled != nil && state != StateStopped && state != StateWaiting {
		state, err = StateBroken, t.unsettled
	}
	cause := ""
	if err != nil {
		cause = err.Error()
	}
	if t.state == state && t.cause == cause {
		return false
	}
	changed := t.state != state
	t.state, t.cause = state, cause
	t.relay.observe(func() { t.relay.cfg.Observer.Changed(state, err) })
	if !errors.Is(err, ErrActive) {
		t.relay.source.Report(state, err)
	}
	return changed
}
