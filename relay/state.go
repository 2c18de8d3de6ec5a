package relay

import (
	"errors"
	"time"

	"github.com/pgoutbox/outbox"
)

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
