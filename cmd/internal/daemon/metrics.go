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
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
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

	notified      *prometheus.CounterVec
	notifiedLosts *prometheus.CounterVec

	types, destinations values // that have a label value of their own
}

// backlogs are what a look at the database finds: gauges by their names.
type backlogs map[string]*prometheus.GaugeVec

func newBacklogs(b *book) backlogs {
	m := make(backlogs)
	gauge := func(name, help string, labels ...string) { m[name] = b.gauge(name, help, labels...) }
	gauge("pending_messages", "Committed messages that are not settled, estimated beyond 10,000.", "destination")
	gauge("oldest_pending_timestamp_seconds",
		"When the oldest message that is pending, held or blocked was inserted; the time of the look if there is none.", "destination")
	gauge("held_messages", "Messages that wait for a later attempt, or behind one.", "destination")
	gauge("oldest_held_timestamp_seconds",
		"When the oldest message that is held or blocked was inserted; the time of the look if there is none.", "destination")
	gauge("blocked_lanes", "Keys that are held until an operator acts.", "destination")
	gauge("dead_messages", "Dead letters.", "destination")
	gauge("slot_retained_bytes", "Write-ahead log that the server keeps for the destination's replication slot.", "destination")
	gauge("relays_live", "Relays with a recent heartbeat.")
	gauge("table_bytes", "Size of all segments of the outbox.")
	gauge("backlog_read_timestamp_seconds", "When the backlog was last read from the database.")
	return m
}

func newMetrics(b *book) *metrics {
	group := []string{"destination", "shard_group"}
	m := &metrics{
		book:  b,
		types: values{most: maxEventTypes}, destinations: values{most: maxDestinations},
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
		last:     b.tally("last_published_timestamp_seconds", "When the broker last accepted a message of this relay.", "destination"),
		inFlight: b.tally("in_flight_messages", "Messages in calls to the broker that have not returned.", "destination"),
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
		notified: b.counter("notifications_total",
			"Notifications of messages that will not be tried again: sent, or dropped after several attempts.",
			"destination", "channel", "result"),
		notifiedLosts: b.counter("notifications_lost_messages_total",
			"Messages that will not be tried again and of which a dropped notification would have told.", "destination", "channel"),
	}
	return m
}

// process are the metrics that are no database's.
type process struct {
	spans *prometheus.CounterVec
}

func newProcess(b *book, o Options, clients *brokers.Pool) *process {
	build := b.gauge("build_info", "1, with this program's build as labels.", "version", "revision", "goversion", "schema")
	build.WithLabelValues(o.Version, o.Revision, runtime.Version(), strconv.Itoa(schema.Latest())).Set(1)
	newUsed(b, o.limits, clients)
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
	s := states{verdicts, describeStates(b)}
	b.add(s)
	return s
}

func describeStates(b *book) *prometheus.Desc {
	return b.describe("destination_state", "gauge",
		"1 for each state that the verdict on the destination names, 0 for the others.", "destination", "state")
}

func (s states) Describe(described chan<- *prometheus.Desc) { described <- s.described }

func (s states) Collect(collected chan<- prometheus.Metric) {
	statesOf(s.verdicts(), func(destination string, state health.State, value float64) {
		collected <- prometheus.MustNewConstMetric(s.described, prometheus.GaugeValue, value, destination, string(state))
	})
}

// statesOf emits 1 for each state that a destination's verdict names, 0 for the others.
func statesOf(verdicts map[string]health.Verdict, emit func(destination string, state health.State, value float64)) {
	for name, v := range verdicts {
		named := map[health.State]bool{v.State: true}
		for _, f := range v.Also {
			named[f.State] = true
		}
		for _, state := range health.States() {
			emit(name, state, truth(named[state]))
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
	backlogOf(r, mine, func(name string, value float64, labels ...string) { m[name].WithLabelValues(labels...).Set(value) })
}

// backlogOf emits the values of the gauges of newBacklogs.
func backlogOf(r *health.Report, mine func(destination string) bool, emit func(name string, value float64, labels ...string)) {
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
		emit("pending_messages", float64(d.Pending.N), d.Name)
		emit("oldest_pending_timestamp_seconds", since(d.Oldest), d.Name)
		emit("held_messages", float64(d.Held.Messages.N), d.Name)
		emit("oldest_held_timestamp_seconds", since(d.Held.Oldest), d.Name)
		emit("blocked_lanes", float64(d.Held.Blocked), d.Name)
		emit("dead_messages", float64(d.Dead.Messages.N), d.Name)
		if d.Slot != nil {
			emit("slot_retained_bytes", float64(d.Slot.Kept), d.Name)
		}
	}
	live := 0
	for _, relay := range r.Relays {
		if relay.Live {
			live++
		}
	}
	emit("relays_live", float64(live))
	var size int64
	for _, s := range r.Segments {
		size += s.Bytes
	}
	emit("table_bytes", float64(size))
	emit("backlog_read_timestamp_seconds", seconds(r.At))
}

// forget takes back what a look has found about a destination, for others look at it now.
func (m *metrics) forget(destination string) {
	for _, v := range m.backlogs {
		v.DeletePartialMatch(prometheus.Labels{"destination": destination})
	}
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

// label is the value of the label destination: a bounded number where databases share the series.
func (m *metrics) label(destination string) string {
	if m.shared {
		return m.destinations.label(destination)
	}
	return destination
}

func (m *metrics) observer(destination string, group int, changed func(relay.State, error)) *observer {
	g := strconv.Itoa(group)
	destination = m.label(destination)
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

// maxDestinations bounds the values of the label destination where databases share the series.
const maxDestinations = 100

// values are what has a label value of its own: the first ones. It is safe for concurrent use.
type values struct {
	most int

	mu    sync.Mutex
	known map[string]bool
}

func (e *values) label(value string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known[value] {
		return value
	}
	if len(e.known) >= e.most || !utf8.ValidString(value) {
		return "(other)"
	}
	if e.known == nil {
		e.known = make(map[string]bool)
	}
	value = strings.Clone(value) // a message's memory is used again
	e.known[value] = true
	return value
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
