package daemon

import (
	"errors"
	"io"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/schema"
)

// metrics are what /metrics serves, in a registry of their own.
type metrics struct {
	registry *prometheus.Registry

	published  *prometheus.CounterVec
	failures   *prometheus.CounterVec
	latency    *prometheus.HistogramVec
	calls      *prometheus.HistogramVec
	settled    *prometheus.CounterVec
	deadTotal  *prometheus.CounterVec
	holdsTotal *prometheus.CounterVec

	leaseHeld *prometheus.GaugeVec
	stalled   *prometheus.GaugeVec
	failing   *prometheus.GaugeVec

	backlogs

	emptied    prometheus.Counter
	unselected prometheus.Counter
	kept       prometheus.Gauge
}

// backlogs are what a look at the database finds.
type backlogs struct {
	pending, oldest, held, blocked, dead *prometheus.GaugeVec

	relays, segments, sampled prometheus.Gauge
}

func gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "outbox_" + name, Help: help}, labels)
}

func single(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: "outbox_" + name, Help: help})
}

func newBacklogs(registry *prometheus.Registry) backlogs {
	b := backlogs{
		pending:  gauge("pending_messages", "Committed messages that are not settled, estimated beyond 10,000.", "destination"),
		oldest:   gauge("oldest_pending_timestamp_seconds", "When the oldest message that is pending, held or blocked was inserted; the time of the look if there is none.", "destination"),
		held:     gauge("held_messages", "Messages that wait for a later attempt, or behind one.", "destination"),
		blocked:  gauge("blocked_lanes", "Keys that are held until an operator acts.", "destination"),
		dead:     gauge("dead_messages", "Dead letters.", "destination"),
		relays:   single("relays_live", "Relays with a recent heartbeat."),
		segments: single("table_bytes", "Size of all segments of the outbox."),
		sampled:  single("backlog_read_timestamp_seconds", "When the backlog was last read from the database."),
	}
	registry.MustRegister(b.pending, b.oldest, b.held, b.blocked, b.dead, b.relays, b.segments, b.sampled)
	return b
}

func newMetrics(o Options) *metrics {
	destination := []string{"destination"}
	group := []string{"destination", "shard_group"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "outbox_" + name, Help: help}, labels)
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "outbox_" + name, Help: help,
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}}, destination)
	}
	registry := prometheus.NewRegistry()
	m := &metrics{
		registry:   registry,
		backlogs:   newBacklogs(registry),
		published:  counter("published_total", "Messages that the broker accepted.", "destination"),
		failures:   counter("publish_failures_total", "Messages that the broker did not accept: refused (for good), unavailable (nobody answered, or the outcome is unknown) or error.", "destination", "reason"),
		latency:    histogram("commit_to_ack_seconds", "From the insert of a message, or the time it was delayed to, to the broker's acknowledgement, by the clocks of database and relay."),
		calls:      histogram("publish_seconds", "Duration of calls to the broker."),
		settled:    counter("settlements_total", "Commits that moved the cursor.", "destination"),
		deadTotal:  counter("dead_lettered_total", "Messages that became dead letters: invalid, refused or exhausted.", "destination", "reason"),
		holdsTotal: counter("held_total", "Messages that were set aside for a later attempt.", "destination"),
		leaseHeld:  gauge("lease_held", "1 while this relay owns the shard group.", group...),
		stalled:    gauge("relay_stalled", "1 while the broker does not answer.", group...),
		failing:    gauge("relay_failing", "1 while what a topic is published to doesn't exist or may not be written to.", group...),
		emptied:    prometheus.NewCounter(prometheus.CounterOpts{Name: "outbox_segments_emptied_total", Help: "Segments of the outbox that this relay emptied."}),
		unselected: prometheus.NewCounter(prometheus.CounterOpts{Name: "outbox_messages_unselected_total", Help: "Messages that no destination of this relay's configuration selects, counted by the relay that owns the first one."}),
		kept:       single("segments_kept", "Segments that are not written to any more and could not be emptied."),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "outbox_build_info", Help: "1, with this program's build as labels.",
		ConstLabels: prometheus.Labels{"version": o.Version, "revision": o.Revision, "goversion": runtime.Version(), "schema": strconv.Itoa(schema.Latest())}})
	info.Set(1)
	m.registry.MustRegister(m.published, m.failures, m.latency, m.calls, m.settled, m.deadTotal, m.holdsTotal, m.leaseHeld,
		m.stalled, m.failing, m.emptied, m.unselected, m.kept, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// states is a set of states for each destination: 1 for each that the verdict names, at the time of the scrape.
type states func() map[string]admin.Verdict

var stateOf = prometheus.NewDesc("outbox_destination_state", "1 for each state that the verdict on the destination names, 0 for the others.", []string{"destination", "state"}, nil)

func (s states) Describe(described chan<- *prometheus.Desc) { described <- stateOf }

func (s states) Collect(collected chan<- prometheus.Metric) {
	for name, v := range s() {
		named := map[admin.State]bool{v.State: true}
		for _, f := range v.Also {
			named[f.State] = true
		}
		for _, state := range admin.States() {
			collected <- prometheus.MustNewConstMetric(stateOf, prometheus.GaugeValue, truth(named[state]), name, string(state))
		}
	}
}

// WriteReport prints a report as Prometheus reads it, by the names that the relay's port has.
func WriteReport(w io.Writer, r *admin.Report) error {
	registry := prometheus.NewRegistry()
	newBacklogs(registry).sample(r, func(string) bool { return true })
	registry.MustRegister(states(func() map[string]admin.Verdict {
		each := make(map[string]admin.Verdict, len(r.Destinations))
		for _, d := range r.Destinations {
			each[d.Name] = d.Verdict
		}
		return each
	}))
	families, err := registry.Gather()
	if err != nil {
		return err
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
			return err
		}
	}
	return nil
}

// sample takes over what a look at the database found.
func (m backlogs) sample(r *admin.Report, mine func(destination string) bool) {
	for _, d := range r.Destinations {
		if !mine(d.Name) {
			continue
		}
		oldest := d.Oldest
		if oldest.IsZero() {
			oldest = r.At
		}
		m.pending.WithLabelValues(d.Name).Set(float64(d.Pending.N))
		m.oldest.WithLabelValues(d.Name).Set(seconds(oldest))
		m.held.WithLabelValues(d.Name).Set(float64(d.Held.Messages.N))
		m.blocked.WithLabelValues(d.Name).Set(float64(d.Held.Blocked))
		m.dead.WithLabelValues(d.Name).Set(float64(d.Dead.Messages.N))
	}
	live := 0
	for _, relay := range r.Relays {
		if relay.Live {
			live++
		}
	}
	m.relays.Set(float64(live))
	var size int64
	for _, s := range r.Segments {
		size += s.Bytes
	}
	m.segments.Set(float64(size))
	m.sampled.Set(seconds(r.At))
}

func (m *metrics) retention(r polling.RetentionReport) {
	m.emptied.Add(float64(len(r.Emptied)))
	if r.Err == nil {
		m.kept.Set(float64(len(r.Kept)))
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// observer counts what one relay does, and passes its state on.
type observer struct {
	published, settled, holds    prometheus.Counter
	refused, unavailable, failed prometheus.Counter
	latency, calls               prometheus.Observer
	leaseHeld, stalled, failing  prometheus.Gauge
	dead                         map[relay.Reason]prometheus.Counter
	changed                      func(relay.State, error)
}

var _ relay.Observer = (*observer)(nil)

func (m *metrics) observer(destination string, group int, changed func(relay.State, error)) *observer {
	g := strconv.Itoa(group)
	o := &observer{
		published:   m.published.WithLabelValues(destination),
		settled:     m.settled.WithLabelValues(destination),
		holds:       m.holdsTotal.WithLabelValues(destination),
		refused:     m.failures.WithLabelValues(destination, "refused"),
		unavailable: m.failures.WithLabelValues(destination, "unavailable"),
		failed:      m.failures.WithLabelValues(destination, "error"),
		latency:     m.latency.WithLabelValues(destination),
		calls:       m.calls.WithLabelValues(destination),
		leaseHeld:   m.leaseHeld.WithLabelValues(destination, g),
		stalled:     m.stalled.WithLabelValues(destination, g),
		failing:     m.failing.WithLabelValues(destination, g),
		dead:        map[relay.Reason]prometheus.Counter{},
		changed:     changed,
	}
	for _, reason := range []relay.Reason{relay.ReasonInvalid, relay.ReasonRefused, relay.ReasonExhausted} {
		o.dead[reason] = m.deadTotal.WithLabelValues(destination, string(reason))
	}
	return o
}

func (o *observer) Published(batch []*outbox.Message, errs []error, took time.Duration) {
	now := time.Now()
	accepted := 0
	for i, message := range batch {
		if errs != nil && errs[i] != nil {
			switch err := errs[i]; {
			case errors.Is(err, outbox.ErrSkipped):
			case outbox.IsPermanent(err):
				o.refused.Inc()
			case outbox.IsUnavailable(err):
				o.unavailable.Inc()
			default:
				o.failed.Inc()
			}
			continue
		}
		accepted++
		since := message.CreatedAt
		if message.DeliverAt.After(since) {
			since = message.DeliverAt
		}
		o.latency.Observe(max(now.Sub(since).Seconds(), 0)) // the clocks may differ
	}
	o.published.Add(float64(accepted))
	o.calls.Observe(took.Seconds())
}

func (o *observer) Settled(s *relay.Settlement) {
	o.settled.Inc()
	o.holds.Add(float64(len(s.Hold)))
	for _, list := range [][]relay.Dead{s.Dead, s.HeldDead} {
		for _, d := range list {
			if counter := o.dead[d.Reason]; counter != nil {
				counter.Inc()
			}
		}
	}
}

func (o *observer) Changed(state relay.State, err error) {
	o.leaseHeld.Set(truth(state == relay.StateFlowing || state == relay.StateFailing || state == relay.StateStalled))
	o.failing.Set(truth(state == relay.StateFailing))
	o.stalled.Set(truth(state == relay.StateStalled))
	o.changed(state, err)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
