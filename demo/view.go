package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

// view is everything that is shown at one moment: as a frame, a line or JSON.
type view struct {
	Elapsed time.Duration
	Left    time.Duration // to the verdict, if the run ends by itself; else 0
	Phase   phase

	Postgres string // PostgreSQL 18.6
	Broker   string // NATS JetStream 2.15.2
	Address  string
	BrokerUp bool
	Page     string // the console's address

	Wanted  int // events a second
	In, Out rates
	Counts  check.Counts
	// Lost counts events that a later one of their order has overtaken. While the demo runs, other undelivered events
	// count as in flight.
	Lost    int
	Latency latencies // of the last seconds

	Relays []relayView
	Long   time.Duration // how long the oldest long transaction has been open, 0 if there is none
	Events []event
	Help   bool
	Keys   bool // there is a keyboard
}

// phase is the current phase of the demo.
type phase string

const (
	phaseStarting phase = "starting" // no event has been delivered yet
	phaseRunning  phase = "running"
	phaseDraining phase = "draining" // nothing more is written
)

// relayView is what the user sees of a relay.
type relayView struct {
	Name string `json:"-"`
	PID  int    `json:"pid,omitempty"` // 0 if it isn't running
	Role role   `json:"role"`
}

type role string

const (
	leads   role = "leads"
	standby role = "stands by"
	down    role = "is gone"
)

// rates are events per second, now and before.
type rates struct {
	Now     int
	History []int // oldest first
}

const history = 240 // seconds

func (r *rates) add(events uint64, took time.Duration) {
	r.Now = int(float64(events)/took.Seconds() + 0.5)
	r.History = append(r.History, r.Now)
	r.History = r.History[max(0, len(r.History)-history):]
}

// sampler computes rates from counts, once a second. Only one goroutine uses it.
type sampler struct {
	at       time.Time
	previous check.Counts
	in, out  rates
}

// due reports whether a second is over. Frames come at fractions of a second; the last frame of a second may come a
// little early.
func (s *sampler) due(now time.Time) bool { return now.Sub(s.at) > 950*time.Millisecond }

func (s *sampler) take(now check.Counts, at time.Time) {
	if !s.at.IsZero() {
		s.in.add(now.Committed-s.previous.Committed, at.Sub(s.at))
		s.out.add(now.Delivered-s.previous.Delivered, at.Sub(s.at))
	}
	s.at, s.previous = at, now
}

// view is the current state.
func (d *demo) view() *view {
	now := time.Now()
	if d.sampler.due(now) {
		d.service.book.turn()
		d.sampler.take(d.arrived.Counts(), now)
	}
	latency, _, _ := d.service.book.latencies()
	return &view{
		Elapsed:  now.Sub(d.out.started),
		Left:     d.left(now),
		Phase:    d.phase.Load().(phase),
		Postgres: "PostgreSQL " + d.db.version,
		Broker:   d.place.name,
		Address:  d.place.address,
		BrokerUp: d.faults.brokerUp(),
		Page:     d.page,
		Wanted:   d.service.rate(),
		In:       d.sampler.in,
		Out:      d.sampler.out,
		Counts:   d.arrived.Counts(),
		Lost:     d.service.book.overtaken(now, 2*time.Second),
		Latency:  latency,
		Relays:   d.relays.view(d.leader().name),
		Long:     d.faults.longFor(now),
		Help:     d.help,
	}
}

func (v *view) json() any {
	relays := make(map[string]relayView)
	for _, r := range v.Relays {
		relays[r.Name] = r
	}
	return struct {
		Type       string               `json:"type"`
		At         seconds              `json:"at_seconds"`
		Phase      phase                `json:"phase"`
		In         int                  `json:"committed_per_second"`
		Out        int                  `json:"delivered_per_second"`
		Committed  uint64               `json:"committed"`
		RolledBack uint64               `json:"rolled_back"`
		Delivered  uint64               `json:"delivered"`
		UnderWay   uint64               `json:"under_way"`
		Dead       uint64               `json:"dead_lettered"`
		Lost       int                  `json:"lost"`
		Phantom    uint64               `json:"phantom"`
		Inverted   uint64               `json:"inverted"`
		Corrupted  uint64               `json:"corrupted"`
		Duplicated uint64               `json:"duplicated"`
		Latency    latencies            `json:"latency_ms"`
		BrokerUp   bool                 `json:"broker_up"`
		Relays     map[string]relayView `json:"relays"`
	}{
		"sample", seconds(v.Elapsed), v.Phase, v.In.Now, v.Out.Now, v.Counts.Committed, v.Counts.RolledBack, v.Counts.Delivered,
		v.Counts.Outstanding, v.Counts.DeadLettered, v.Lost, v.Counts.Phantom, v.Counts.Inverted, v.Counts.Corrupted,
		v.Counts.Duplicated, v.Latency, v.BrokerUp, relays,
	}
}

func (v *view) brokerState() string {
	if v.BrokerUp {
		return "up"
	}
	return "down"
}

// line is v as one line of text.
func (v *view) line(s style) string {
	leader, latency := "no relay", "no event arrived"
	for _, r := range v.Relays {
		if r.Role == leads {
			leader = r.Name
		}
	}
	if v.Latency.Count > 0 {
		latency = "p99 " + duration(v.Latency.P99)
	}
	return fmt.Sprintf("%6s  in %s/s, out %s/s, %s under way, %s, %s, broker %s; %s\n",
		clock(v.Elapsed), number(v.In.Now), number(v.Out.Now),
		number(v.Counts.Outstanding), latency, leader, v.brokerState(), strings.Join([]string{
			s.count("lost", uint64(v.Lost), red), s.count("phantom",
				v.Counts.Phantom, red), s.count("out of order", v.Counts.Inverted, red),
			s.count("duplicated", v.Counts.Duplicated, yellow),
		}, ", "))
}

// number formats with thousands separated: 21,034.
func number[N int | int64 | uint64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// duration formats with a precision for people: 2.1 ms, 38 ms, 2.35 s, 1:15.
func duration(d time.Duration) string {
	switch ms := float64(d) / float64(time.Millisecond); {
	case d < 9950*time.Microsecond:
		return fmt.Sprintf("%.1f ms", ms)
	case d < 999500*time.Microsecond:
		return fmt.Sprintf("%.0f ms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return clock(d) + " min"
}

// clock formats a time since the start: 0:07.
func clock(d time.Duration) string {
	s := int(d.Seconds())
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// plural returns "1 event", "2 events".
func plural[N int | int64 | uint64](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(n) + " " + one + "s"
}
