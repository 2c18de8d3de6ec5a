package main

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// latency measures the time from COMMIT to the consumer: over the last seconds for the screen, over all for the verdict,
// and over what was committed while nothing was broken.
type latency struct {
	mu        sync.Mutex
	recent    *hdrhistogram.WindowedHistogram // of a section a second
	all, calm *hdrhistogram.Histogram
}

const latencySeconds = 5

// Microseconds up to an hour are counted, to 1 %.
const longest, digits = int64(time.Hour / time.Microsecond), 2

func newLatency() *latency {
	return &latency{
		recent: hdrhistogram.NewWindowed(latencySeconds, 1, longest, digits),
		all:    hdrhistogram.New(1, longest, digits),
		calm:   hdrhistogram.New(1, longest, digits),
	}
}

func (l *latency) record(took time.Duration, calm bool) {
	us := min(max(took.Microseconds(), 1), longest)
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.recent.Current.RecordValue(us) // it is within the bounds
	_ = l.all.RecordValue(us)
	if calm {
		_ = l.calm.RecordValue(us)
	}
}

// turn is called every second.
func (l *latency) turn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recent.Rotate()
}

// last returns the percentiles of the last seconds.
func (l *latency) last() latencies {
	l.mu.Lock()
	defer l.mu.Unlock()
	return percentiles(l.recent.Merge())
}

// total returns the percentiles of everything, and of what was committed in calm.
func (l *latency) total() (all, calm latencies) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return percentiles(l.all), percentiles(l.calm)
}

// latencies are percentiles of the time from commit to consumer. Count is how many events they are of.
type latencies struct {
	Count              int64
	P50, P95, P99, Max time.Duration
}

func percentiles(h *hdrhistogram.Histogram) latencies {
	at := func(q float64) time.Duration { return time.Duration(h.ValueAtQuantile(q)) * time.Microsecond }
	return latencies{Count: h.TotalCount(), P50: at(50), P95: at(95), P99: at(99), Max: time.Duration(h.Max()) * time.Microsecond}
}

// MarshalJSON writes milliseconds.
func (l latencies) MarshalJSON() ([]byte, error) {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return json.Marshal(struct {
		Count int64   `json:"count"`
		P50   float64 `json:"p50"`
		P95   float64 `json:"p95"`
		P99   float64 `json:"p99"`
		Max   float64 `json:"max"`
	}{l.Count, ms(l.P50), ms(l.P95), ms(l.P99), ms(l.Max)})
}
