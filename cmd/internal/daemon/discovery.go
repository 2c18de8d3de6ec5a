package daemon

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox/admin/health"
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

// readyPage is readiness with what plans compare.
type readyPage struct {
	readiness
	Settings string `json:"settings"`
}

// ready reports whether this process can do its work: one database is enough, for one that is away must not stop what
// the others need; where none has been discovered, or other members have all, there is nothing to do. Of many databases
// the body has those that are not ready, unless all are asked for.
func (d *Daemon) ready(units []*unit, all bool) (ready bool, body map[string]any) {
	here, well := 0, 0
	named := fewest(units, all, func(u *unit) (readyPage, bool) {
		r := u.watch.readiness()
		away := u.watch.elsewhere()
		if !away {
			here++
		}
		if !away && r.Ready {
			well++
		}
		return readyPage{r, u.settings()}, r.Ready || away
	})
	sources, complete, _ := d.discovered()
	ready = well > 0 || here == 0 && (len(units) > 0 || complete)
	body = map[string]any{"ready": ready, "databases": named,
		"counts": map[string]int{"databases": len(units), "here": here, "ready": well}}
	if len(sources) > 0 {
		body["discovery"] = sources
	}
	return ready, body
}

// delivering reports whether all databases are delivered from, those that a source has and no unit too. Of many
// databases the body has those that are not well.
func (d *Daemon) delivering(units []*unit, all bool) (well bool, body map[string]any) {
	sources, _, well := d.discovered()
	var verdicts []health.Named
	named := fewest(units, all, func(u *unit) (healthPage, bool) {
		h := u.watch.health()
		well = well && h.Delivers()
		if !u.watch.elsewhere() {
			verdicts = append(verdicts, health.Named{Name: u.Name, Verdict: h.Verdict})
		}
		return h, h.State.OK()
	})
	over := health.Over(verdicts)
	body = map[string]any{"sentence": over.Sentence(), "states": over.Counts, "databases": named}
	if len(sources) > 0 {
		body["discovery"] = slices.Clone(sources)
	}
	return well, body
}
