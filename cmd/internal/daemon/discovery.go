package daemon

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox/cmd/internal/discover"
)

// discovery is what the port says of a source of databases.
type discovery struct {
	Source    string             `json:"source"`
	Databases int                `json:"databases"`
	Withheld  []string           `json:"withheld,omitempty"`
	LeftOut   []discover.LeftOut `json:"left_out,omitempty"`
	Error     string             `json:"error,omitempty"`
}

// discovered is what is known of the sources, nil if there is none. complete means that each has been looked at, and
// well that all that they have is delivered from as they say.
func (d *Daemon) discovered() (all []discovery, complete, well bool) {
	if d.options.Discovery == nil {
		return nil, false, true
	}
	complete, well = true, true
	for _, s := range d.options.Discovery() {
		all = append(all, discovery{s.Source, len(s.Databases), s.Withheld, s.LeftOut, s.Error})
		complete = complete && !s.LookedAt.IsZero()
		well = well && s.Error == "" && len(s.Withheld) == 0 && len(s.LeftOut) == 0
	}
	return all, complete && len(all) > 0, well
}

// findings are the metrics of the sources of databases, at the time of the scrape.
type findings struct {
	status                                           func() []discover.Status
	databases, failures, withheld, leftOut, lookedAt *prometheus.Desc
}

func newFindings(b *book, status func() []discover.Status) {
	b.add(&findings{status,
		b.describe("discovered_databases", "gauge", "Databases that a source of discover has, and that are delivered from.", "source"),
		b.describe("discovery_failures_total", "counter", "Looks at a source of databases that failed. What it had is kept.", "source"),
		b.describe("discovery_withheld_databases", "gauge", "Databases that a source has no more and that are kept, because too many "+
			"would vanish at once.", "source"),
		b.describe("discovery_left_out_databases", "gauge", "Databases that a source has and that can't be delivered from as "+
			"it says.", "source"),
		b.describe("discovery_looked_timestamp_seconds", "gauge", "When a source of databases last answered; 0 for never.", "source")})
}

func (f *findings) all() []*prometheus.Desc {
	return []*prometheus.Desc{f.databases, f.failures, f.withheld, f.leftOut, f.lookedAt}
}

func (f *findings) Describe(described chan<- *prometheus.Desc) {
	for _, d := range f.all() {
		described <- d
	}
}

func (f *findings) Collect(collected chan<- prometheus.Metric) {
	if f.status == nil {
		return
	}
	for _, s := range f.status() {
		var looked float64
		if !s.LookedAt.IsZero() {
			looked = seconds(s.LookedAt)
		}
		for i, value := range []float64{float64(len(s.Databases)), float64(s.Failures), float64(len(s.Withheld)),
			float64(len(s.LeftOut)), looked} {
			kind := prometheus.GaugeValue
			if i == 1 {
				kind = prometheus.CounterValue
			}
			collected <- prometheus.MustNewConstMetric(f.all()[i], kind, value, s.Source)
		}
	}
}

var _ prometheus.Collector = (*findings)(nil)

// settings are a fingerprint of what u does, without secrets: whoever has the configuration can tell whether it is what
// the configuration says.
func (u *unit) settings() string { return u.Config.Fingerprint() }

// ready reports whether this process can do its work: one database is enough, for one that is away must not stop what
// the others need; where none has been discovered, there is nothing to do.
func (d *Daemon) ready(units []*unit) (ready bool, body map[string]any) {
	all := map[string]any{}
	for _, u := range units {
		r := u.watch.readiness()
		all[u.Name] = struct {
			readiness
			Settings string `json:"settings"`
		}{r, u.settings()}
		ready = ready || r.Ready
	}
	sources, complete, _ := d.discovered()
	ready = ready || len(units) == 0 && complete
	body = map[string]any{"ready": ready, "databases": all}
	if len(sources) > 0 {
		body["discovery"] = sources
	}
	return ready, body
}

// delivering reports whether all databases are delivered from, those that a source has and no unit too.
func (d *Daemon) delivering(units []*unit) (well bool, body map[string]any) {
	all := map[string]healthPage{}
	sources, _, well := d.discovered()
	for _, u := range units {
		h := u.watch.health()
		all[u.Name], well = h, well && h.Delivers()
	}
	body = map[string]any{"databases": all}
	if len(sources) > 0 {
		body["discovery"] = slices.Clone(sources)
	}
	return well, body
}
