package relay

import "time"

// closed is the outage of a route. Until its end nothing is published there; then a single message is, which moves the
// end. A pause is one without a cause, and nothing moves its end but the controls.
type closed struct {
	since    time.Time
	until    time.Time
	failures int
	cause    error
	waiting  int  // lanes in memory whose head waits for its end
	over     bool // a message of the route has been accepted
}

// lasts reports whether o, which may be nil, still keeps messages from being published.
func (o *closed) lasts(now time.Time) bool { return o != nil && now.Before(o.until) }

// target is the part that a pause stops. Empty fields stand for all.
type target struct{ topic, lane string }

// outage is the state of a destination where no answer comes.
type outage struct {
	failures int // 0: no outage
	until    time.Time
	asked    time.Time // the destination asked for a pause until then
	probing  bool
	cause    error
}

// forbids reports whether nothing may be published: only after the pause, and then one call at a time.
func (o *outage) forbids(now time.Time) bool {
	return o.failures > 0 && (o.probing || now.Before(o.until))
}
