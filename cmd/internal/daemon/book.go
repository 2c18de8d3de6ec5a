package daemon

import "github.com/prometheus/client_golang/prometheus"

// book makes metrics, which have the name of a database as a label unless it is empty, and notes what docs/metrics.md
// tells of them.
type book struct {
	registry *prometheus.Registry
	register prometheus.Registerer
	database bool // all have the label
	shared   bool // by several databases: their gauges are made at the time of the scrape
	entries  []entry
	made     []prometheus.Collector
}

// entry is a metric as docs/metrics.md has it.
type entry struct {
	name, kind, help string
	labels           []string
}

func newBook(registry *prometheus.Registry, database string) *book {
	if database == "" {
		return &book{registry: registry, register: registry}
	}
	return &book{registry: registry, register: prometheus.WrapRegistererWith(prometheus.Labels{"database": database},
		registry), database: true}
}

// newSharedBook is for what several databases count together. The label is there, because all series of a metric have
// the same labels, and is empty, which to Prometheus is none.
func newSharedBook(registry *prometheus.Registry) *book {
	return &book{registry: registry, register: prometheus.WrapRegistererWith(prometheus.Labels{"database": ""}, registry),
		database: true, shared: true}
}

func (b *book) add(c prometheus.Collector) {
	b.register.MustRegister(c)
	b.made = append(b.made, c)
}

// close takes the metrics out of the registry, unless other databases need them.
func (b *book) close() {
	if b.shared {
		return
	}
	for _, c := range b.made {
		b.register.Unregister(c)
	}
}

// note returns the full name.
func (b *book) note(name, kind, help string, labels []string) string {
	name = "outbox_" + name
	if b.database {
		labels = append([]string{"database"}, labels...)
	}
	b.entries = append(b.entries, entry{name, kind, help, labels})
	return name
}

func (b *book) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: b.note(name, "gauge", help, labels), Help: help}, labels)
	if !b.shared {
		b.add(v)
	}
	return v
}

// tally makes a gauge that is right for several databases, too, because they count it up and down, or set it to now.
func (b *book) tally(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: b.note(name, "gauge", help, labels), Help: help}, labels)
	b.add(v)
	return v
}

// single makes a gauge without labels.
func (b *book) single(name, help string) prometheus.Gauge {
	return b.gauge(name, help).WithLabelValues()
}

func (b *book) counter(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: b.note(name, "counter", help, labels), Help: help}, labels)
	b.add(v)
	return v
}

// histogram makes one of durations in seconds.
func (b *book) histogram(name, help string, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: b.note(name, "histogram", help, labels), Help: help,
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}}, labels)
	b.add(v)
	return v
}

// describe is for a metric that a collector makes at the time of the scrape.
func (b *book) describe(name, kind, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(b.note(name, kind, help, labels), help, labels, nil)
}
