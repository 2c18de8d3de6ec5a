package daemon

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"net/http"
	"net/http/httptest"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/relay"
)

// crowd is a Daemon with databases that are made up.
type crowd struct {
	*Daemon
	list []*unit
}

func newCrowd(most, worst, databases int) *crowd {
	cfg := fields.Default[config.Config]()
	cfg.HTTP.Metrics = config.Metrics{Databases: most, Worst: worst}
	c := &crowd{Daemon: &Daemon{cfg: cfg, registry: prometheus.NewRegistry(), wanted: make([]Database, databases)}}
	c.sums = newSums(newBook(c.registry, ""), worst, func() []*unit { return c.list })
	return c
}

// add adds a database whose destination kafka this relay delivers to.
func (c *crowd) add(name string) *unit {
	u := &unit{Database: Database{Name: name}, metrics: c.metricsOf(name)}
	u.watch = newWatch("relay", u.metrics, slog.New(slog.DiscardHandler), nil)
	u.watch.starting("kafka", 0, true)
	u.watch.note("kafka", 0, relay.StateFlowing, nil)
	if !u.metrics.shared {
		newStates(u.metrics.book, func() map[string]health.Verdict { return u.watch.health().Destinations })
	}
	c.list = append(c.list, u)
	u.found(0, 0)
	return u
}

// found is a look that finds so many messages, and the oldest so old.
func (u *unit) found(pending int64, old time.Duration) {
	w, now := u.watch, time.Now()
	r := &health.Report{At: now, Database: u.Name, Destinations: []health.Destination{{Name: "kafka", Pending: admin.Count{N: pending},
		LagObjective: time.Hour, Groups: []health.Group{{Groups: 1, Owner: "relay", Live: true, LeaseUntil: now.Add(time.Minute)}}}}}
	if old > 0 {
		r.Destinations[0].Oldest = now.Add(-old)
	}
	w.report, w.readAt = r, now
	if !u.metrics.shared {
		u.metrics.sample(r, w.mine)
	}
}

// is has the only destination be in a state.
func (u *unit) now(state relay.State) { u.watch.note("kafka", 0, state, nil) }

// values are those of a metric by the database.
func (c *crowd) values(t *testing.T, metric string, labels ...string) map[string]float64 {
	t.Helper()
	families, err := c.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		if f.GetName() != metric {
			continue
		}
		for _, m := range f.Metric {
			if database, ok := matches(m, labels); ok {
				found[database] += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return found
}

func matches(m *dto.Metric, labels []string) (database string, ok bool) {
	have := map[string]string{}
	for _, l := range m.Label {
		have[l.GetName()] = l.GetValue()
	}
	for i := 0; i+1 < len(labels); i += 2 {
		if have[labels[i]] != labels[i+1] {
			return "", false
		}
	}
	return have["database"], true
}

func (u *unit) published(n int) {
	o := u.metrics.observer("kafka", 0, func(relay.State, error) {})
	for range n {
		o.Published([]*outbox.Message{{}}, nil, make([]time.Duration, 1), time.Millisecond)
	}
}

func total(values map[string]float64) (n float64) {
	for _, v := range values {
		n += v
	}
	return n
}

// Up to the bound each database has its series. Beyond, the worst have gauges by name and all others one together, so
// that sums over all series are those of all databases.
func TestManyDatabasesHaveSeriesTogetherAndTheWorstHaveTheirName(t *testing.T) {
	t.Parallel()
	few := newCrowd(3, 2, 3)
	many := newCrowd(3, 2, 20)
	for i := range 20 {
		if i < 3 {
			few.add(fmt.Sprint("db-", i)).published(2)
		}
		u := many.add(fmt.Sprint("db-", i))
		u.published(2)
		u.found(10, time.Duration(i)*time.Second)
	}
	if got := few.values(t, "outbox_published_total"); len(got) != 3 || total(got) != 6 || got["db-1"] != 2 {
		t.Errorf("few: %v", got)
	}
	if got := few.values(t, "outbox_databases"); total(got) != 3 {
		t.Errorf("few: %v", got)
	}
	if got := many.values(t, "outbox_published_total"); len(got) != 1 || got[""] != 40 {
		t.Errorf("many: %v", got)
	}
	if got := many.values(t, "outbox_insert_to_ack_seconds"); len(got) != 1 || got[""] != 40 {
		t.Errorf("many: %v", got)
	}
	if got := many.values(t, "outbox_pending_messages"); len(got) != 1 || got[""] != 200 {
		t.Errorf("all are well, and %v", got)
	}
	for i := range 4 {
		many.list[i+3].now(relay.StateStalled)
	}
	many.list[9].now(relay.StateBroken)
	named := many.values(t, "outbox_pending_messages")
	if len(named) != 3 || named["db-9"] != 10 || named["db-6"] != 10 || total(named) != 200 {
		t.Errorf("the worst are %v", named)
	}
	if got := many.values(t, "outbox_destination_state", "state", "stalled"); got[""] != 1 || got["db-6"] != 1 || got["db-9"] != 0 {
		t.Errorf("stalled: %v", got)
	}
	for state, want := range map[string]float64{"broken": 1, "stalled": 4, "flowing": 15} {
		if got := many.values(t, "outbox_databases", "state", state); got[""] != want {
			t.Errorf("%v are %s", got, state)
		}
	}
	oldest := many.values(t, "outbox_oldest_pending_timestamp_seconds")
	if waits := seconds(time.Now()) - oldest[""]; waits < 18 || waits > 60 {
		t.Errorf("the oldest of the others waits %v s", waits)
	}
}

// Those that are named stay so while none is in a worse state: the set doesn't follow each look. And what is counted
// never falls, whichever come and go.
func TestSeriesDoNotJumpAndCountersNeverFall(t *testing.T) {
	t.Parallel()
	c := newCrowd(0, 1, 3)
	for _, name := range []string{"a", "b", "c"} {
		u := c.add(name)
		u.published(5)
		u.now(relay.StateStalled)
	}
	c.list[1].found(1, time.Minute)
	if got := c.values(t, "outbox_pending_messages"); len(got) != 2 || got["b"] != 1 {
		t.Fatalf("%v", got)
	}
	c.list[2].found(7, time.Hour)
	if got := c.values(t, "outbox_pending_messages"); got["b"] != 1 || got[""] != 7 {
		t.Errorf("the name jumps with the lag: %v", got)
	}
	c.list[0].now(relay.StateBroken)
	if got := c.values(t, "outbox_relay_stalled"); got["a"] != 0 || len(got) != 2 {
		t.Errorf("the worst has no name: %v", got)
	}
	c.list[0].metrics.close() // its database is another member's now
	c.list = c.list[1:]
	if got := c.values(t, "outbox_published_total"); got[""] != 15 {
		t.Errorf("a counter fell: %v", got)
	}
	c.add("a").published(1)
	if got := c.values(t, "outbox_published_total"); got[""] != 16 {
		t.Errorf("%v", got)
	}
}

// What all relays of a database read is added up by the one that delivers, so that the sum over relays is right.
func TestWhatAnotherRelayDeliversIsCountedThere(t *testing.T) {
	t.Parallel()
	c := newCrowd(0, 1, 2)
	mine, other := c.add("mine"), c.add("other")
	mine.found(3, time.Second)
	other.found(100, time.Minute)
	other.watch.report.Destinations[0].Groups[0].Owner = "another"
	other.now(relay.StateWaiting)
	if got := c.values(t, "outbox_pending_messages"); got[""] != 3 {
		t.Errorf("%v", got)
	}
	if got := c.values(t, "outbox_databases"); got[""] != 1 {
		t.Errorf("%v databases", got)
	}
	if got := c.values(t, "outbox_lease_held"); got[""] != 1 {
		t.Errorf("%v leases", got)
	}
}

// As many names of destinations as databases make no series each.
func TestDestinationsOfManyDatabasesHaveABoundedNumberOfSeries(t *testing.T) {
	t.Parallel()
	c := newCrowd(0, 1, 1)
	u := c.add("a")
	for i := range maxDestinations + 20 {
		o := u.metrics.observer(fmt.Sprint("to-", i), 0, func(relay.State, error) {})
		o.Published([]*outbox.Message{{}}, nil, make([]time.Duration, 1), time.Millisecond)
	}
	if got := c.values(t, "outbox_published_total", "destination", "(other)"); got[""] != 20 {
		t.Errorf("%v", got)
	}
}

// BenchmarkAScrape is of a relay with many databases, of which some are not well.
func BenchmarkAScrape(b *testing.B) {
	for _, most := range []int{100, 1000} {
		b.Run(fmt.Sprint("databases=1000/named=", most), func(b *testing.B) {
			c := newCrowd(most, 20, 1000)
			for i := range 1000 {
				u := c.add(fmt.Sprintf("database-%04d", i))
				u.published(10)
				u.found(int64(i), time.Duration(i)*time.Millisecond)
				if i%20 == 0 {
					u.now(relay.StateStalled)
				}
			}
			handler := promhttp.HandlerFor(c.registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
			size, series := 0, 0
			for b.Loop() {
				answer := httptest.NewRecorder()
				handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				text := answer.Body.String()
				size, series = len(text), strings.Count(text, "\n")-strings.Count(text, "\n#")
			}
			b.ReportMetric(float64(size), "B")
			b.ReportMetric(float64(series), "series")
		})
	}
}
