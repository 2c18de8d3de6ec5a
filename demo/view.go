package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

// view is all that is shown at one moment. How it is shown is for frame, plain and the JSON.
type view struct {
	Elapsed time.Duration
	Left    time.Duration // to the verdict, of a run that ends by itself, else 0
	Phase   phase

	Postgres string // PostgreSQL 18.6
	Broker   string // NATS JetStream 2.15.2
	Address  string
	BrokerUp bool

	Wanted  int // events a second
	In, Out rate
	Counts  check.Counts
	// Lost counts events that a later one of their order has overtaken: while the demo runs, the others are on their way.
	Lost    int
	Latency latencies // of the last seconds

	Relays []relayView
	Long   time.Duration // how long the long transaction has been open, 0 if there is none
	Events []event
	Help   bool
	Keys   bool // there is a keyboard
}

// phase is what the demo is doing.
type phase string

const (
	phaseStarting phase = "starting" // no event has been delivered yet
	phaseRunning  phase = "running"
	phaseDraining phase = "draining" // nothing is written any more
)

// relayView is a relay as a person sees it.
type relayView struct {
	Name string
	PID  int // 0 while it doesn't run
	Role role
}

type role string

const (
	leads   role = "leads"
	standby role = "stands by"
	down    role = "is gone"
)

// rate is a figure per second, now and before.
type rate struct {
	Now     int
	History []int // oldest first
}

// event is something that happened.
type event struct {
	At   time.Duration
	Kind string // for machines: broker_down, relay_killed, ...
	Text string
	Bad  bool // it shouldn't have happened
}

// latencies are percentiles of the time from commit to consumer. Count is how many events they are of.
type latencies struct {
	Count         int64
	P50, P95, P99 time.Duration
	Max           time.Duration
}

// number formats with thousands separated: 21,034.
func number[N int | int64 | uint64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	var b strings.Builder
	for i, digit := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// duration formats with the precision that a person wants: 2.1 ms, 38 ms, 2.35 s, 1:15.
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
