package daemon

import (
	"errors"
	"io"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/retention"
	"github.com/pgoutbox/outbox/schema"
)

// metrics are what /metrics serves.
type metrics struct {
	*book

	published  *prometheus.CounterVec
	failures   *prometheus.CounterVec
	latency    *prometheus.HistogramVec
	calls      *prometheus.HistogramVec
	last       *prometheus.GaugeVec
	inFlight   *prometheus.GaugeVec
	retries    *prometheus.CounterVec
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

	types eventTypes
}

// backlogs are what a look at the database finds.
type backlogs struct {
	pending, oldest, held, oldestHeld, blocked, dead, slot *prometheus.GaugeVec

	relays, segments, sampled prometheus.Gauge
}

func newBacklogs(b *book) backlogs {
	return backlogs{
		pending: b.gauge("pending_messages", "Committed messages that are not settled, estimated beyond 10,000.", "destination"),
		oldest: b.gauge("oldest_pending_timestamp_seconds",
			"When the oldest message that is pending, held or blocked was inserted; the time of the look if there is none.", "destination"),
		held: b.gauge("held_messages", "Messages that wait for a later attempt, or behind one.", "destination"),
		oldestHeld: b.gauge("oldest_held_timestamp_seconds",
			"When the oldest message that is held or blocked was inserted; the time of the look if there is none.", "destination"),
		blocked: b.gauge("blocked_lanes", "Keys that are held until an operator acts.", "destination"),
		dead:    b.gauge("dead_messages", "Dead letters.", "destination"),
		slot: b.gauge("slot_retained_bytes", "Write-ahead log that the server keeps for the destination's "+
			"replication slot.", "destination"),
		relays:   b.single("relays_live", "Relays with a recent heartbeat."),
		segments: b.single("table_bytes", "Size of all segments of the outbox."),
		sampled:  b.single("backlog_read_timestamp_seconds", "When the backlog was last read from the database."),
	}
}

func newMetrics(b *book) *metrics {
	group := []string{"destination", "shard_group"}
	m := &metrics{
		book:      b,
		backlogs:  newBacklogs(b),
		published: b.counter("published_total", "Messages that the broker accepted.", "destination"),
		failures: b.counter("publish_failures_total", "Messages that the broker did not accept: refused (for good), "+
			"unavailable (no answer came, or the outcome is unknown) or error.", "destination", "reason"),
		retries: b.counter("retries_total", "Messages that the broker neither accepted nor refused for good, so that they are tried again "+
			"while they have attempts left. Event types after the first "+strconv.Itoa(maxEventTypes)+" count as \"(other)\".",
			"destination", "event_type"),
		latency: b.histogram("insert_to_ack_seconds", "From the insert of a message, or the time it was delayed to, to the broker's "+
			"acknowledgement, by the clocks of database and relay. Its exemplars carry trace_id.", "destination"),
		calls:    b.histogram("publish_seconds", "Duration of calls to the broker.", "destination"),
		last:     b.gauge("last_published_timestamp_seconds", "When the broker last accepted a message of this relay.", "destination"),
		inFlight: b.gauge("in_flight_messages", "Messages in calls to the broker that have not returned.", "destination"),
		settled:  b.counter("settlements_total", "Commits that moved the cursor.", "destination"),
		deadTotal: b.counter("dead_lettered_total", "Messages that became dead letters: invalid, refused or exhausted.",
			"destination", "reason"),
		holdsTotal: b.counter("held_total", "Messages that were set aside for a later attempt.", "destination"),
		leaseHeld:  b.gauge("lease_held", "1 while this relay owns the shard group.", group...),
		stalled:    b.gauge("relay_stalled", "1 while the broker does not answer.", group...),
		failing: b.gauge("relay_failing", "1 while what a topic is published to doesn't exist or may not be written to.",
			group...),
		emptied: b.counter("segments_emptied_total", "Segments of the outbox that this relay emptied.").WithLabelValues(),
		unselected: b.counter("messages_unselected_total", "Messages that no destination of this relay's configuration selects, "+
			"counted by the relay that owns the first one.").WithLabelValues(),
		kept: b.single("segments_kept", "Segments that are not written to any more and could not be emptied."),
	}
	return m
}

// process are the metrics that are no database's.
type process struct {
	spans *prometheus.CounterVec
}

func newProcess(b *book, o Options) *process {
	build := b.gauge("build_info", "1, with this program's build as labels.", "version", "revision", "goversion", "schema")
	build.WithLabelValues(o.Version, o.Revision, runtime.Version(), strconv.Itoa(schema.Latest())).Set(1)
	newUsed(b, o.limits)
	b.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &process{spans: b.counter("spans_total",
		"Spans of traces: exported, failed (the collector did not take them), dropped (too many were "+
			"waiting for it) or left_out (a call to the broker had too many).", "outcome")}
}

// states is a set of states for each destination: 1 for each that the verdict names, at the time of the scrape.
type states struct {
	verdicts  func() map[string]health.Verdict
	described *prometheus.Desc
}

func newStates(b *book, verdicts func() map[string]health.Verdict) states {
	s := states{verdicts, b.describe("destination_state", "gauge",
		"1 for each state that the verdict on the destination names, 0 for the others.", "destination", "state")}
	b.add(s)
	return s
}

func (s states) Describe(described chan<- *prometheus.Desc) { described <- s.described }

func (s states) Collect(collected chan<- prometheus.Metric) {
	for name, v := range s.verdicts() {
		named := map[health.State]bool{v.State: true}
		for _, f := range v.Also {
			named[f.State] = true
		}
		for _, state := range health.States() {
			collected <- prometheus.MustNewConstMetric(s.described, prometheus.GaugeValue, truth(named[state]), name, string(state))
		}
	}
}

// WriteReports prints the reports of databases by their names as Prometheus reads it, with the metrics' names that the
// relay's port has.
func WriteReports(w io.Writer, reports map[string]*health.Report) error {
	registry := prometheus.NewRegistry()
	for database, r := range reports {
		b := newBook(registry, database)
		newBacklogs(b).sample(r, func(string) bool { return true })
		newStates(b, func() map[string]health.Verdict {
			each := make(map[string]health.Verdict, len(r.Destinations))
			for _, d := range r.Destinations {
				each[d.Name] = d.Verdict
			}
			return each
		})
	}
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
func (m backlogs) sample(r *health.Report, mine func(destination string) bool) {
	for _, d := range r.Destinations {
		if !mine(d.Name) {
			continue
		}
		since := func(t time.Time) float64 {
			if t.IsZero() {
				t = r.At
			}
			return seconds(t)
		}
		m.pending.WithLabelValues(d.Name).Set(float64(d.Pending.N))
		m.oldest.WithLabelValues(d.Name).Set(since(d.Oldest))
		m.held.WithLabelValues(d.Name).Set(float64(d.Held.Messages.N))
		m.oldestHeld.WithLabelValues(d.Name).Set(since(d.Held.Oldest))
		m.blocked.WithLabelValues(d.Name).Set(float64(d.Held.Blocked))
		m.dead.WithLabelValues(d.Name).Set(float64(d.Dead.Messages.N))
		if d.Slot != nil {
			m.slot.WithLabelValues(d.Name).Set(float64(d.Slot.Kept))
		}
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

func (m *metrics) retention(r retention.Report) {
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
	latency                      prometheus.ExemplarObserver
	calls                        prometheus.Observer
	leaseHeld, stalled, failing  prometheus.Gauge
	destination                  string
	metrics                      *metrics
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
		latency:     m.latency.WithLabelValues(destination).(prometheus.ExemplarObserver),
		calls:       m.calls.WithLabelValues(destination),
		leaseHeld:   m.leaseHeld.WithLabelValues(destination, g),
		stalled:     m.stalled.WithLabelValues(destination, g),
		failing:     m.failing.WithLabelValues(destination, g),
		dead:        map[relay.Reason]prometheus.Counter{},
		destination: destination,
		metrics:     m,
		changed:     changed,
	}
	for _, reason := range []relay.Reason{relay.ReasonInvalid, relay.ReasonRefused, relay.ReasonExhausted} {
		o.dead[reason] = m.deadTotal.WithLabelValues(destination, string(reason))
	}
	return o
}

func (o *observer) Published(batch []*outbox.Message, errs []error, ages []time.Duration, took time.Duration) {
	accepted := 0
	for i, message := range batch {
		if errs != nil && errs[i] != nil {
			switch err := errs[i]; {
			case errors.Is(err, outbox.ErrSkipped):
			case outbox.IsPermanent(err):
				o.refused.Inc()
			case outbox.IsUnavailable(err):
				o.unavailable.Inc()
				o.retry(message)
			default:
				o.failed.Inc()
				o.retry(message)
			}
			continue
		}
		accepted++
		var exemplar prometheus.Labels
		if accepted == 1 { // for a call, since each takes memory
			exemplar = traceOf(message)
		}
		o.latency.ObserveWithExemplar(ages[i].Seconds(), exemplar)
	}
	if accepted > 0 {
		o.metrics.last.WithLabelValues(o.destination).Set(seconds(time.Now()))
	}
	o.published.Add(float64(accepted))
	o.calls.Observe(took.Seconds())
}

func (o *observer) retry(message *outbox.Message) {
	o.metrics.retries.WithLabelValues(o.destination, o.metrics.types.label(message.EventType)).Inc()
}

// traceOf returns the trace id of a message that is sampled, nil for others.
func traceOf(m *outbox.Message) prometheus.Labels {
	trace, _ := m.TraceParent()
	if !trace.Sampled {
		return nil
	}
	return prometheus.Labels{"trace_id": strings.Clone(trace.TraceID)} // the message's memory is used again
}

// maxEventTypes bounds the values of the label event_type, for who writes events chooses them.
const maxEventTypes = 50

// eventTypes are the event types that have a label value of their own. It is safe for concurrent use.
type eventTypes struct {
	mu    sync.Mutex
	known map[string]bool
}

func (e *eventTypes) label(eventType string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known[eventType] {
		return eventType
	}
	if len(e.known) >= maxEventTypes || !utf8.ValidString(eventType) {
		return "(other)"
	}
	if e.known == nil {
		e.known = make(map[string]bool)
	}
	eventType = strings.Clone(eventType) // the message's memory is used again
	e.known[eventType] = true
	return eventType
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
	full := state == relay.StateFull
	o.leaseHeld.Set(truth(state == relay.StateFlowing || state == relay.StateFailing || state == relay.StateStalled || full))
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
