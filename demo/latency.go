package main

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// latency measures the time from COMMIT to the consumer: over the last seconds for the screen, over all for the verdict,
// and over what was committed while nothing was broken.
type latency struct {
	mu     sync.Mutex
	recent [latencySeconds]*hdrhistogram.Histogram // a ring, one for each second
	now    int
	all    *hdrhistogram.Histogram
	calm   *hdrhistogram.Histogram
}

const latencySeconds = 5

func newLatency() *latency {
	l := &latency{all: newHistogram(), calm: newHistogram()}
	for i := range l.recent {
		l.recent[i] = newHistogram()
	}
	return l
}

// newHistogram counts microseconds up to an hour, to 1 %.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, time.Hour.Microseconds(), 2)
}

func (l *latency) record(took time.Duration, calm bool) {
	us := min(max(took.Microseconds(), 1), time.Hour.Microseconds())
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.recent[l.now].RecordValue(us) // it is within the bounds
	_ = l.all.RecordValue(us)
	if calm {
		_ = l.calm.RecordValue(us)
	}
}

// turn is called every second.
func (l *latency) turn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = (l.now + 1) % latencySeconds
	l.recent[l.now].Reset()
}

// last returns the percentiles of the last seconds.
func (l *latency) last() latencies {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := newHistogram()
	for _, h := range l.recent {
		sum.Merge(h)
	}
	return percentiles(sum)
}

// total returns the percentiles of everything, and of what was committed in calm.
func (l *latency) total() (all, calm latencies) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return percentiles(l.all), percentiles(l.calm)
}

func percentiles(h *hdrhistogram.Histogram) latencies {
	at := func(q float64) time.Duration { return time.Duration(h.ValueAtQuantile(q)) * time.Microsecond }
	return latencies{Count: h.TotalCount(), P50: at(50), P95: at(95), P99: at(99), Max: time.Duration(h.Max()) * time.Microsecond}
}
