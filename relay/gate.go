package relay

import "time"

// gate keeps messages from being published: the outage of a route, which has a cause, or a pause, which has none. Until
// the end of an outage nothing is published to its route; then a single message is, which moves the end. Only the
// controls move the end of a pause.
type gate struct {
	since    time.Time
	until    time.Time
	failures int
	cause    error
	waiting  int  // lanes in memory whose head waits for its end
	over     bool // a message of the route has been accepted
}

// shut reports whether g, which may be nil, keeps messages from being published now.
func (g *gate) shut(now time.Time) bool { return g != nil && now.Before(g.until) }

// pauseTarget names the topic and the lane that a pause stops. An empty field stands for all.
type pauseTarget struct{ topic, lane string }

// outage is the state of a destination that does not answer.
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
