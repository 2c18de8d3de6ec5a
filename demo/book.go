package main

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/pgoutbox/outbox/internal/check"
)

// book numbers the events of each order, and follows events from COMMIT to the consumer: how long they took, and which
// have been overtaken. The checker judges; the book is for what a person watches meanwhile.
type book struct {
	mu       sync.Mutex
	drawn    []uint64 // by order: the last number
	highest  []uint64 // by order: the highest number that has arrived
	underway map[check.ID]departure

	recent    *hdrhistogram.WindowedHistogram // one section per second
	all, calm *hdrhistogram.Histogram         // calm: events that were committed and arrived while nothing was broken
}

// departure is an event in flight.
type departure struct {
	at     time.Time
	calm   bool // committed while nothing was broken
	poison bool // the broker will refuse it

	fate chan<- fate // gets the event's fate, with room for it; may be nil
}

// fate is how an event ends: it arrives, some time after its commit, or it is a dead letter.
type fate struct {
	took   time.Duration
	letter deadLetter
}

const latencySeconds = 5

func newBook(orders int) *book {
	// Microseconds up to an hour are counted, to 1 %.
	const longest, digits = int64(time.Hour / time.Microsecond), 2
	return &book{
		drawn:    make([]uint64, orders),
		highest:  make([]uint64, orders),
		underway: make(map[check.ID]departure),
		recent:   hdrhistogram.NewWindowed(latencySeconds, 1, longest, digits),
		all:      hdrhistogram.New(1, longest, digits),
		calm:     hdrhistogram.New(1, longest, digits),
	}
}

// draw returns the identity of an order's next event.
func (b *book) draw(order uint32) check.ID {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drawn[order]++
	return check.ID{Key: order, Seq: b.drawn[order]}
}

// depart records an event whose COMMIT is about to be sent.
func (b *book) depart(id check.ID, d departure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.underway[id] = d
}

// settle removes an event that won't arrive: it was rolled back, or has become a dead letter. It returns whether the
// broker was expected to refuse the event.
func (b *book) settle(id check.ID, letter *deadLetter) (poison bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.underway[id]
	delete(b.underway, id)
	if d.fate != nil && letter != nil {
		d.fate <- fate{letter: *letter}
	}
	return d.poison
}

// arrive records a delivery; calm tells whether nothing is broken. Other programs may write to the broker too, so id
// may be one that was never drawn.
func (b *book) arrive(id check.ID, now time.Time, calm bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if int(id.Key) < len(b.highest) {
		b.highest[id.Key] = max(b.highest[id.Key], id.Seq)
	}
	d, found := b.underway[id]
	if !found {
		return
	}
	delete(b.underway, id)
	took := now.Sub(d.at)
	us := min(max(took.Microseconds(), b.all.LowestTrackableValue()), b.all.HighestTrackableValue())
	_ = b.recent.Current.RecordValue(us) // the value is within the bounds
	_ = b.all.RecordValue(us)
	if calm && d.calm {
		_ = b.calm.RecordValue(us)
	}
	if d.fate != nil {
		d.fate <- fate{took: took}
	}
}

// passed reports whether a later event of its order has arrived.
func (b *book) passed(id check.ID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.highest[id.Key] > id.Seq
}

// overtaken counts the events that a later one of their order has overtaken, and that were committed longer than grace
// ago. If they are not dead letters, they are lost or will arrive out of order. More recent events may belong to
// writers that have not yet reported their roll-back.
func (b *book) overtaken(now time.Time, grace time.Duration) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, d := range b.underway {
		if id.Seq < b.highest[id.Key] && !d.poison && now.Sub(d.at) > grace {
			n++
		}
	}
	return n
}

// turn is called every second.
func (b *book) turn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recent.Rotate()
}

// latencies returns the percentiles of the last seconds, of everything, and of what happened in calm.
func (b *book) latencies() (recent, all, calm latencies) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return percentiles(b.recent.Merge()), percentiles(b.all), percentiles(b.calm)
}

// latencies are percentiles of the time from commit to consumer. Count is the number of events.
type latencies struct {
	Count              int64
	P50, P95, P99, Max time.Duration
}

func percentiles(h *hdrhistogram.Histogram) latencies {
	at := func(q float64) time.Duration { return time.Duration(h.ValueAtQuantile(q)) * time.Microsecond }
	return latencies{h.TotalCount(), at(50), at(95), at(99), time.Duration(h.Max()) * time.Microsecond}
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
