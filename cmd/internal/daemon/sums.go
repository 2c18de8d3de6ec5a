package daemon

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/retention"
)

// metricsOf returns what counts for a database: series with its name, or with too many databases for that, series that
// it shares with others.
func (d *Daemon) metricsOf(name string) *metrics {
	if len(d.wanted) <= d.cfg.HTTP.Metrics.Databases {
		return newMetrics(newBook(d.registry, name))
	}
	if d.sums.metrics == nil {
		d.sums.share(d.registry)
	}
	return d.sums.metrics
}

// retained takes over what retention did.
func (u *unit) retained(r retention.Report) {
	u.metrics.retention(r)
	if r.Err == nil {
		u.kept.Store(int64(len(r.Kept)))
	}
}

// sums are the metrics of many databases: how many there are in each state, and what those have together that have no
// series of their own.
//
// They share their counters and histograms, whose label database is empty. So a counter is never less than before,
// whichever databases come and go. A gauge is made at the scrape: by name for the worst few, whose verdicts are not
// well, and without a name for all others together. So no message is in two series, and sums and maxima over all series
// of a gauge are those of all databases.
type sums struct {
	*metrics // nil while each database has its own

	worst     int
	units     func() []*unit
	databases *prometheus.Desc
	gauges    map[string]entry // by their names without the prefix

	mu    sync.Mutex
	named map[*unit]bool // at the last scrape
}

func newSums(b *book, worst int, units func() []*unit) *sums {
	s := &sums{worst: worst, units: units, databases: b.describe("databases", "gauge",
		"Databases of this relay by the state of their verdicts, without those that another relay delivers from. "+
			"Those that are dormant, and well, are in that state alone.", "state")}
	b.add(s)
	return s
}

// share makes what databases without series of their own have together.
func (s *sums) share(registry *prometheus.Registry) {
	s.metrics = newMetrics(newSharedBook(registry))
	describeStates(s.book)
	s.gauges = make(map[string]entry)
	for _, e := range s.entries {
		s.gauges[strings.TrimPrefix(e.name, "outbox_")] = e
	}
}

// Describe names no gauge of a database, because those by name differ from scrape to scrape.
func (s *sums) Describe(described chan<- *prometheus.Desc) { described <- s.databases }

// look is what is known of a database at a scrape.
type look struct {
	*unit
	report  *health.Report
	verdict health.Verdict            // on what this relay delivers to
	each    map[string]health.Verdict // by destination
	parts   []health.Live
	waited  time.Duration // for which the oldest message has
}

func (u *unit) look() look {
	w := u.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	l := look{unit: u, report: w.now(w.report, w.age()), parts: w.works()}
	l.verdict, l.each = l.report.On(w.destinations)
	for _, d := range l.report.Destinations {
		if !d.Oldest.IsZero() && w.mine(d.Name) {
			l.waited = max(l.waited, l.report.At.Sub(d.Oldest))
		}
	}
	return l
}

// delivers reports whether this relay has the destination's first shard group. One relay has it at a time, so what each
// adds up of its own is right over all relays.
func (l *look) delivers(destination string) bool {
	return slices.ContainsFunc(l.parts, func(p health.Live) bool { return p.Destination == destination && p.Group == 0 && owns(p.State) })
}

// elsewhere reports whether other relays deliver from the database, and this one doesn't.
func (l *look) elsewhere() bool {
	return len(l.parts) == 0 || !slices.ContainsFunc(l.parts, func(p health.Live) bool { return p.State != string(relay.StateWaiting) }) &&
		l.verdict.Delivers()
}

// owns reports whether a part in that state is this relay's: one that is dormant is until another relay wants it.
func owns(state string) bool {
	switch relay.State(state) {
	case health.DormantState, relay.StateFlowing, relay.StateFailing, relay.StateStalled, relay.StateFull:
		return true
	}
	return false
}

func (s *sums) Collect(collected chan<- prometheus.Metric) {
	counts, dormant := make(map[health.State]int), 0
	var shared []look
	for _, u := range s.units() {
		l := u.look()
		if slices.ContainsFunc(l.parts, func(p health.Live) bool { return p.State == health.DormantState }) && l.verdict.State.OK() {
			dormant++
		} else if !l.elsewhere() {
			counts[l.verdict.State]++
		}
		if u.metrics.shared && len(l.parts) > 0 {
			shared = append(shared, l)
		}
	}
	collected <- prometheus.MustNewConstMetric(s.databases, prometheus.GaugeValue, float64(dormant), health.DormantState)
	for _, state := range health.States() {
		collected <- prometheus.MustNewConstMetric(s.databases, prometheus.GaugeValue, float64(counts[state]), string(state))
	}
	if s.metrics == nil {
		return
	}
	named, others := s.choose(shared)
	for i := range named {
		l := &named[i]
		l.gauges(func(name string, value float64, labels ...string) { collected <- s.gauge(l.Name, name, value, labels) })
	}
	type folded struct {
		name   string
		labels []string
		value  float64
	}
	together := make(map[string]*folded)
	for i := range others {
		l := &others[i]
		l.gauges(func(name string, value float64, labels ...string) {
			if !l.counts(name, labels) {
				return
			}
			if len(labels) > 0 {
				labels[0] = s.label(labels[0])
			}
			key := name + "\x00" + strings.Join(labels, "\x00")
			if t := together[key]; t != nil {
				t.value = folds[name](t.value, value)
				return
			}
			together[key] = &folded{name, labels, value}
		})
	}
	for _, t := range together {
		collected <- s.gauge("", t.name, t.value, t.labels)
	}
}

// fold makes one value of those of two databases.
type fold func(a, b float64) float64

func sum(a, b float64) float64   { return a + b }
func least(a, b float64) float64 { return min(a, b) }
func most(a, b float64) float64  { return max(a, b) }

// folds are those of the gauges of databases, by their names.
var folds = map[string]fold{
	"pending_messages": sum, "held_messages": sum, "blocked_lanes": sum, "dead_messages": sum, "table_bytes": sum, "lease_held": sum,
	"oldest_pending_timestamp_seconds": least, "oldest_held_timestamp_seconds": least, "relays_live": least,
	"backlog_read_timestamp_seconds": least,
	"slot_retained_bytes":            most, "segments_kept": most, "destination_state": most, "relay_stalled": most, "relay_failing": most,
}

// counts reports whether this relay adds the value to those of other databases: what all relays of a database read is
// added up by the one that delivers.
func (l *look) counts(name string, labels []string) bool {
	switch name {
	case "pending_messages", "held_messages", "blocked_lanes", "dead_messages":
		return l.delivers(labels[0])
	case "table_bytes":
		return len(l.parts) > 0 && l.delivers(l.parts[0].Destination)
	}
	return true
}

// gauges emits those of the database. The first label is the destination.
func (l *look) gauges(emit func(name string, value float64, labels ...string)) {
	if !l.report.At.IsZero() {
		backlogOf(l.report, l.watch.mine, emit)
	}
	statesOf(l.each, func(destination string, state health.State, value float64) {
		emit("destination_state", value, destination, string(state))
	})
	for _, p := range l.parts {
		group := strconv.Itoa(p.Group)
		emit("lease_held", truth(owns(p.State)), p.Destination, group)
		emit("relay_stalled", truth(p.State == string(relay.StateStalled)), p.Destination, group)
		emit("relay_failing", truth(p.State == string(relay.StateFailing)), p.Destination, group)
	}
	emit("segments_kept", float64(l.kept.Load()))
}

// gauge is one of a database, "" for all that are not named.
func (s *sums) gauge(database, name string, value float64, labels []string) prometheus.Metric {
	of := s.gauges[name]
	described := prometheus.NewDesc(of.name, of.help, of.labels[1:], prometheus.Labels{"database": database})
	return prometheus.MustNewConstMetric(described, prometheus.GaugeValue, value, labels...)
}

// choose returns the databases that are named, and the others. One that is named stays so while none is in a worse
// state, or series would come and go with each scrape.
func (s *sums) choose(all []look) (named, others []look) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(all, func(a, b look) int {
		return cmp.Or(health.Compare(b.verdict.State, a.verdict.State), -cmp.Compare(truth(s.named[a.unit]), truth(s.named[b.unit])),
			cmp.Compare(b.waited, a.waited), strings.Compare(a.Name, b.Name))
	})
	n := 0
	s.named = make(map[*unit]bool)
	for n < min(len(all), s.worst) && !all[n].verdict.State.OK() {
		s.named[all[n].unit] = true
		n++
	}
	return all[:n], all[n:]
}
