package relay

import "time"

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
