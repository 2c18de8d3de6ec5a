package relay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

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
