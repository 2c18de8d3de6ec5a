// Package relay delivers committed messages from a [Source] to a [Broker]: at least once, in order per
// key, never one that was rolled back.
//
// Its core is a state machine without I/O, clock or goroutines; a thin runner performs the actions that
// it asks for. docs/design.md follows one message through it.
package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgoutbox/outbox"
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

// observe has tell call the observer. Its first panic is logged.
func (r *Relay) observe(tell func()) {
	if err := try("Observer", tell); err != nil {
		r.observerPanics.Do(func() {
			r.cfg.Logger.Error("the observer has panicked; further panics of it are not logged",
				"destination", r.cfg.Name, "error", err)
		})
	}
}

// loop performs what the core asks for. Only its own goroutine touches the core: everything else runs
// beside it and reports through events.
type loop struct {
	relay   *Relay
	session Session
	state   *tracker
	core    *core
	started time.Time

	ping        ping
	recognition recognition

	events     chan event
	running    map[string]int // goroutines that will still send an event, by the call that they make
	broken     error
	abandoned  chan struct{}     // closed when the session is, without giving the lease back; nil: it isn't to be
	callLimits []int             // the most messages in a call of each stripe: see Relay.publish
	calls      map[int]time.Time // when the call of a stripe began that has not returned

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

// do runs f, which makes a call, in a goroutine of its own, and what f returns in the loop. A call that ends its
// goroutine breaks the session.
func (l *loop) do(call string, f func() func()) {
	l.running[call]++
	go func() {
		apply := func() { l.fail(fmt.Errorf("%s has called runtime.Goexit", call)) }
		defer func() { l.events <- event{call, apply} }()
		apply = f()
	}()
}

// returned notes that a call has returned.
func (l *loop) returned(e event) {
	if l.running[e.call]--; l.running[e.call] == 0 {
		delete(l.running, e.call)
	}
}

// fail ends the session because of err.
func (l *loop) fail(err error) {
	if l.broken == nil {
		l.broken = err
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

// calling names the calls that have not returned.
func (l *loop) calling() string {
	var calls []string
	for _, call := range slices.Sorted(maps.Keys(l.running)) {
		calls = append(calls, fmt.Sprintf("%s (%d)", call, l.running[call]))
	}
	return strings.Join(calls, ", ")
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

// ping is the state of the pings to the broker, by which a wrong address or login is known before the first message.
type ping struct {
	pinger  Pinger // nil: it can't be asked
	asking  bool
	askedAt time.Time // when it was asked, or last answered a call
	err     error     // of the last ping
}

const (
	pingIdle    = time.Minute     // the pause between two pings while the broker answers
	pingAgain   = 5 * time.Second // while it doesn't
	pingTimeout = 10 * time.Second
)

// answered notes that a call to the broker has ended: the core judges what came of it.
func (p *ping) answered(now time.Time) { p.askedAt, p.err = now, nil }

// due returns the time of the next ping; zero: none.
func (p *ping) due() time.Time {
	pause := pingIdle
	if p.err != nil {
		pause = pingAgain
	}
	switch {
	case p.pinger == nil || p.asking:
		return time.Time{}
	case p.askedAt.IsZero():
		return time.Unix(0, 1) // at once
	}
	return p.askedAt.Add(pause)
}

// recognition is the state of asking the broker whether it is the destination's: when a session begins, and after each
// outage, when another broker may be behind the address. Calls wait for the end of a look, whatever it finds: a broker
// that doesn't know its identity doesn't stop the relay.
type recognition struct {
	identifier Identifier // nil: it can't be asked
	asking     bool
	askedAt    time.Time // when the last look ended, zero before the first one
	known      bool
	fresh      bool    // a look has ended since the session began or an outage was noticed
	waiting    []*call // for a look
}

const (
	identifyTimeout = 5 * time.Second
	identifyAgain   = 5 * time.Second // after a look that found nothing
)

// due returns the time of the next look; zero: none.
func (r *recognition) due() time.Time {
	switch {
	case r.identifier == nil || r.known || r.asking:
		return time.Time{}
	case r.askedAt.IsZero() || len(r.waiting) > 0:
		return time.Unix(0, 1) // at once
	}
	return r.askedAt.Add(identifyAgain)
}

// allowsCalls reports whether calls may go on: no look has to come first.
func (r *recognition) allowsCalls() bool { return r.identifier == nil || r.fresh }

// forget makes calls wait for a new look at the broker. A look that is under way counts.
func (r *recognition) forget() { r.known, r.fresh = false, false }
