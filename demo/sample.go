package main

import (
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/printed"
)

// sample is the state at one moment, as JSON or as a line.
type sample struct {
	Type       string  `json:"type"`
	At         seconds `json:"at_seconds"`
	Phase      phase   `json:"phase"`
	In         int     `json:"committed_per_second"`
	Out        int     `json:"delivered_per_second"`
	Committed  uint64  `json:"committed"`
	RolledBack uint64  `json:"rolled_back"`
	Delivered  uint64  `json:"delivered"`
	UnderWay   uint64  `json:"under_way"`
	Dead       uint64  `json:"dead_lettered"`
	// Lost counts events that a later one of their order has overtaken. While the demo runs, other undelivered events
	// count as under way.
	Lost       int                   `json:"lost"`
	Phantom    uint64                `json:"phantom"`
	Inverted   uint64                `json:"inverted"`
	Corrupted  uint64                `json:"corrupted"`
	Duplicated uint64                `json:"duplicated"`
	Latency    latencies             `json:"latency_ms"` // of the last seconds
	BrokerUp   bool                  `json:"broker_up"`
	Relays     map[string]relayState `json:"relays"`
}

// phase is the current phase of the demo.
type phase string

const (
	phaseStarting phase = "starting" // no event has been delivered yet
	phaseRunning  phase = "running"
	phaseDraining phase = "draining" // nothing more is written
)

type relayState struct {
	PID  int  `json:"pid,omitempty"` // 0 if it isn't running
	Role role `json:"role"`
}

type role string

const (
	leads   role = "leads"
	standby role = "stands by"
	down    role = "is gone"
)

// rates computes events per second from counts, once a second. Only one goroutine uses it.
type rates struct {
	at       time.Time
	previous check.Counts
	in, out  int
}

// due reports whether a second is over. Samples come at fractions of a second; the last one of a second may come a
// little early.
func (r *rates) due(now time.Time) bool { return now.Sub(r.at) > 950*time.Millisecond }

func (r *rates) take(now check.Counts, at time.Time) {
	if !r.at.IsZero() {
		perSecond := func(events uint64) int { return int(float64(events)/at.Sub(r.at).Seconds() + 0.5) }
		r.in, r.out = perSecond(now.Committed-r.previous.Committed), perSecond(now.Delivered-r.previous.Delivered)
	}
	r.at, r.previous = at, now
}

// sample is the current state.
func (d *demo) sample() *sample {
	now := time.Now()
	if d.rates.due(now) {
		d.service.book.turn()
		d.rates.take(d.arrived.Counts(), now)
	}
	latency, _, _ := d.service.book.latencies()
	counts := d.arrived.Counts()
	return &sample{
		Type:       "sample",
		At:         seconds(now.Sub(d.out.started)),
		Phase:      d.phase.Load().(phase),
		In:         d.rates.in,
		Out:        d.rates.out,
		Committed:  counts.Committed,
		RolledBack: counts.RolledBack,
		Delivered:  counts.Delivered,
		UnderWay:   counts.Outstanding,
		Dead:       counts.DeadLettered,
		Lost:       d.service.book.overtaken(now, 2*time.Second),
		Phantom:    counts.Phantom,
		Inverted:   counts.Inverted,
		Corrupted:  counts.Corrupted,
		Duplicated: counts.Duplicated,
		Latency:    latency,
		BrokerUp:   d.faults.brokerUp(),
		Relays:     d.relays.states(d.leader().name),
	}
}

// line is s as one line of text. What must stay 0 comes first, because a narrow terminal cuts the line.
func (s *sample) line(style style) string {
	leader, latency, broker := "no relay leads", "no event arrived", "broker down"
	for name, r := range s.Relays {
		if r.Role == leads {
			leader = name + " leads"
		}
	}
	if s.Latency.Count > 0 {
		latency = "p99 " + duration(s.Latency.P99)
	}
	if s.BrokerUp {
		broker = "broker up"
	}
	return fmt.Sprintf("%6s  %s, %s, %s; in %s/s, out %s/s, %s under way, %s, %s, %s, %s", clock(time.Duration(s.At)),
		style.count("lost", uint64(s.Lost), red), style.count("phantom", s.Phantom, red), style.count("out of order", s.Inverted, red),
		printed.Number(s.In), printed.Number(s.Out), printed.Number(s.UnderWay), latency, leader, broker,
		style.count("duplicated", s.Duplicated, yellow))
}
