package console

import (
	"context"
	"math"
	"math/bits"
	"sync"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/relay"
)

// History remembers how the destinations did: an hour by the second and a day by the minute. It is safe for concurrent
// use.
type History struct {
	mu     sync.Mutex
	series map[string]*series
}

// NewHistory makes an empty history.
func NewHistory() *History { return &History{series: map[string]*series{}} }

// Point is what is known of a destination at a moment. A value that isn't known is NaN.
type Point struct {
	In, Out       float32 // messages a second
	Pending       float32 // messages
	Age           float32 // of the oldest that waits, in seconds
	P50, P95, P99 float32 // from insert to acknowledgement, in seconds
}

var nothing = Point{nan, nan, nan, nan, nan, nan, nan}

var nan = float32(math.NaN())

const (
	secondsKept = 3600
	minutesKept = 1440
	// carried is for how many seconds a look stands: looks are rarer than seconds.
	carried = 30
)

// series is the history of a destination.
type series struct {
	seconds, minutes ring

	now    histogram    // since the last look
	recent [6]histogram // ten seconds each, by turns
	decade int64        // of the one that is filled

	last       sample
	minute     Point // the largest of the minute so far, the rates in sums
	minuteSeen int
}

// sample is what rates are made from.
type sample struct {
	at               time.Time
	delivered, total int64
}

func (h *History) seriesOf(destination string) *series {
	s := h.series[destination]
	if s == nil {
		s = &series{seconds: ring{size: secondsKept}, minutes: ring{size: minutesKept}}
		h.series[destination] = s
	}
	return s
}

// Observer records what a relay publishes, and passes everything on.
func (h *History) Observer(destination string, next relay.Observer) relay.Observer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return observer{next, h, h.seriesOf(destination)}
}

type observer struct {
	relay.Observer
	history *History
	series  *series
}

func (o observer) Published(batch []*outbox.Message, errs []error, ages []time.Duration, took time.Duration) {
	o.history.mu.Lock()
	ten := o.series.current(time.Now())
	for i, age := range ages {
		if errs != nil && errs[i] != nil {
			continue
		}
		bucket := bucketOf(age)
		o.series.now[bucket]++
		ten[bucket]++
	}
	o.history.mu.Unlock()
	o.Observer.Published(batch, errs, ages, took)
}

// current is the histogram of the running ten seconds.
func (s *series) current(now time.Time) *histogram {
	decade := now.Unix() / 10
	for ; s.decade < decade; s.decade++ {
		if decade-s.decade > int64(len(s.recent)) {
			s.decade = decade - int64(len(s.recent))
		}
		s.recent[(s.decade+1)%int64(len(s.recent))] = histogram{}
	}
	return &s.recent[decade%int64(len(s.recent))]
}

// Add records a report that was read now.
func (h *History) Add(r *health.Report, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range r.Destinations {
		d := &r.Destinations[i]
		h.seriesOf(d.Name).add(d, r.At, now)
	}
}

func (s *series) add(d *health.Destination, at, now time.Time) {
	p := nothing
	p.Pending, p.Age = float32(d.Pending.N+d.Held.Messages.N), 0
	if !d.Oldest.IsZero() {
		p.Age = float32(max(at.Sub(d.Oldest).Seconds(), 0))
	}
	is := sample{at, d.Delivered, d.Delivered + d.Pending.N + d.Held.Messages.N + d.Dead.Messages.N}
	if passed := at.Sub(s.last.at).Seconds(); !s.last.at.IsZero() && passed > 0.2 && passed < 60 {
		p.Out = float32(max(float64(is.delivered-s.last.delivered)/passed, 0))
		p.In = float32(max(float64(is.total-s.last.total)/passed, 0))
	}
	s.last = is
	p.P50, p.P95, p.P99 = s.now.percentiles()
	s.now = histogram{}

	second := now.Unix()
	from := s.seconds.last + 1
	if s.seconds.last == 0 || second-from > carried {
		from = second
	}
	for slot := from; slot <= second; slot++ {
		s.seconds.put(slot, p)
		s.perMinute(slot, p)
	}
}

// perMinute sums seconds up: the worst of what waits, the mean of rates.
func (s *series) perMinute(second int64, p Point) {
	m := &s.minute
	if s.minuteSeen == 0 {
		*m = p
	} else {
		m.Pending, m.Age = max(m.Pending, p.Pending), max(m.Age, p.Age)
		m.In, m.Out = sum(m.In, p.In), sum(m.Out, p.Out)
	}
	s.minuteSeen++
	if second%60 != 59 {
		return
	}
	all := s.lastMinute()
	m.P50, m.P95, m.P99 = all.percentiles()
	m.In, m.Out = m.In/float32(s.minuteSeen), m.Out/float32(s.minuteSeen)
	s.minutes.put(second/60, *m)
	s.minuteSeen = 0
}

func sum(a, b float32) float32 {
	if unknown(a) {
		return b
	}
	if unknown(b) {
		return a
	}
	return a + b
}

func (s *series) lastMinute() (all histogram) {
	for _, one := range s.recent {
		for i, n := range one {
			all[i] += n
		}
	}
	return all
}

// Latest is the newest point of a destination, with the latencies of the last minute.
func (h *History) Latest(destination string, now time.Time) Point {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.series[destination]
	if s == nil {
		return nothing
	}
	s.current(now) // what is older goes
	p := s.seconds.point(s.seconds.last)
	if now.Unix()-s.seconds.last > carried {
		p = nothing
	}
	all := s.lastMinute()
	p.P50, p.P95, p.P99 = all.percentiles()
	return p
}

// Last are the points of the last n seconds, the oldest first.
func (h *History) Last(destination string, now time.Time, n int) []Point {
	return h.points(destination, func(s *series) []Point { return s.seconds.until(now.Unix(), n) }, n)
}

// Minutes are the points of the last n minutes, the oldest first.
func (h *History) Minutes(destination string, now time.Time, n int) []Point {
	return h.points(destination, func(s *series) []Point { return s.minutes.until(now.Unix()/60, n) }, n)
}

func (h *History) points(destination string, read func(*series) []Point, n int) []Point {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.series[destination]; s != nil {
		return read(s)
	}
	var none ring
	return none.until(0, n)
}

// ring holds the points of the last slots, by their number. It grows until it is full.
type ring struct {
	size   int
	points []Point
	first  int   // the place of the oldest point
	last   int64 // the newest slot; 0: none
}

func (r *ring) put(slot int64, p Point) {
	if slot <= r.last {
		return
	}
	if r.last == 0 || slot-r.last > int64(r.size) {
		r.points, r.first, r.last = r.points[:0], 0, slot-1
	}
	for r.last < slot {
		r.last++
		filling := nothing
		if r.last == slot {
			filling = p
		}
		if len(r.points) < r.size {
			r.points = append(r.points, filling)
			continue
		}
		r.points[r.first] = filling
		r.first = (r.first + 1) % r.size
	}
}

func (r *ring) point(slot int64) Point {
	i := len(r.points) - 1 - int(r.last-slot)
	if i < 0 || slot > r.last {
		return nothing
	}
	return r.points[(r.first+i)%len(r.points)]
}

// until lists the n slots up to one.
func (r *ring) until(slot int64, n int) []Point {
	list := make([]Point, n)
	for i := range list {
		list[i] = r.point(slot - int64(n-1-i))
	}
	return list
}

// histogram counts spans of time: four buckets for each doubling of microseconds.
type histogram [144]uint32

func bucketOf(d time.Duration) int {
	us := max(d.Microseconds(), 1)
	octave := bits.Len64(uint64(us)) - 1
	quarter := 0
	if octave >= 2 {
		quarter = int(us>>(octave-2)) & 3
	}
	return min(octave*4+quarter, len(histogram{})-1)
}

// upper is the largest span of a bucket, in seconds.
func upper(bucket int) float32 {
	octave, quarter := bucket/4, bucket%4
	return float32(math.Ldexp(1+float64(quarter+1)/4, octave) / 1e6)
}

func (h *histogram) percentiles() (p50, p95, p99 float32) {
	var total uint64
	for _, n := range h {
		total += uint64(n)
	}
	if total == 0 {
		return nan, nan, nan
	}
	find := func(share float64) float32 {
		want, seen := uint64(math.Ceil(share*float64(total))), uint64(0)
		for i, n := range h {
			if seen += uint64(n); seen >= want {
				return upper(i)
			}
		}
		return upper(len(h) - 1)
	}
	return find(.5), find(.95), find(.99)
}

// poller reads the database if Options.Report is nil: rarely, for the history, and up to once a second while somebody
// looks at a page.
type poller struct {
	api     *rest.API
	history *History

	mu     sync.Mutex
	last   *health.Report
	at     time.Time
	tried  time.Time
	failed error
}

const (
	pollEvery = 5 * time.Second
	pollSoon  = 900 * time.Millisecond // less than the pause of streams, so that each of their pages is of a report of its own
)

func (p *poller) run(ctx context.Context) {
	for ctx.Err() == nil {
		_, _, _ = p.report()
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
		}
	}
}

func (p *poller) report() (*health.Report, time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		p.last = &health.Report{}
	}
	if time.Since(p.tried) > pollSoon {
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), health.ReadWithin/3)
		status := verbs.Status()
		found, err := p.api.Run(ctx, rest.Caller{Role: verbs.Viewer}, status, status.New())
		cancel()
		p.tried = time.Now()
		if p.failed = err; err == nil {
			p.last, p.at = found.(*health.Report), began
			p.history.Add(p.last, p.tried)
		}
	}
	age := time.Duration(0)
	if !p.at.IsZero() {
		age = time.Since(p.at)
	}
	return p.last.Amended(nil, age, p.failed), age, p.failed
}
