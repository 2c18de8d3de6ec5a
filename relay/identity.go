package relay

import (
	"time"
)

// recognition finds out whether the session's broker is the destination's: when the session begins, and after each
// outage, when another broker may stand behind the address. Calls wait for a look, and not for its success: a broker
// that can't say which one it is doesn't stop the relay.
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

// due is when to look next; zero for not at all.
func (r *recognition) due() time.Time {
	switch {
	case r.identifier == nil || r.known || r.asking:
		return time.Time{}
	case r.askedAt.IsZero() || len(r.waiting) > 0:
		return time.Unix(0, 1) // at once
	}
	return r.askedAt.Add(identifyAgain)
}

// begun reports whether calls may go on: no look has to come first.
func (r *recognition) begun() bool { return r.identifier == nil || r.fresh }

// forget has the broker looked at again before anything more is published. A look that is under way counts.
func (r *recognition) forget() { r.known, r.fresh = false, false }
