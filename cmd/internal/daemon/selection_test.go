package daemon

import (
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
)

func TestOnlyTheFirstDestinationCountsWhatNoneSelects(t *testing.T) {
	t.Parallel()
	destinations := []config.Destination{
		{Name: "a", Topics: []string{"a.*"}, Route: config.Route{Rules: []config.RouteRule{{EventType: "Debug", Drop: true}}}},
		{Name: "b", Filter: []config.Match{{EventType: "B"}}},
	}
	var log strings.Builder
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "x"})
	s := newSelection(config.Config{Destinations: destinations}, counter, firsts(), slog.New(slog.NewTextHandler(&log, nil)))
	var selects []func(*outbox.Message) bool
	for i, d := range destinations {
		rules, err := d.Table().Parse()
		if err != nil {
			t.Fatal(err)
		}
		selects = append(selects, s.filter(i, rules))
	}
	for _, test := range []struct {
		message outbox.Message
		a, b    bool
	}{
		{outbox.Message{Topic: "a.x"}, true, false},
		{outbox.Message{Topic: "a.x", EventType: "Debug"}, false, false}, // dropped in so many words
		{outbox.Message{Topic: "x", EventType: "B"}, false, true},
		{outbox.Message{Topic: "lost"}, false, false},
		{outbox.Message{Topic: "lost"}, false, false},
	} {
		if a, b := selects[0](&test.message), selects[1](&test.message); a != test.a || b != test.b {
			t.Errorf("%+v is selected by a: %v, b: %v", test.message, a, b)
		}
	}
	if n := value(t, counter); n != 2 {
		t.Errorf("%v messages are counted as unselected", n)
	}
	if n := strings.Count(log.String(), "topic=lost"); n != 1 || strings.Contains(log.String(), "a.x") {
		t.Errorf("the log is\n%s", &log)
	}
}

// firsts reports whether a message is the first of its topic.
func firsts() func(*outbox.Message) bool {
	seen := map[string]bool{}
	return func(m *outbox.Message) bool {
		first := !seen[m.Topic]
		seen[m.Topic] = true
		return first
	}
}

func value(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].GetMetric()[0].GetCounter().GetValue()
}

func TestADestinationForEverythingCostsNoFilter(t *testing.T) {
	t.Parallel()
	destinations := []config.Destination{{Topics: []string{"a"}}, {}}
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "x"})
	s := newSelection(config.Config{Destinations: destinations}, counter, firsts(), slog.New(slog.DiscardHandler))
	rules, err := destinations[1].Table().Parse()
	if err != nil {
		t.Fatal(err)
	}
	if s.filter(1, rules) != nil {
		t.Error("a destination that wants everything has a filter")
	}
	if s.filter(0, rules)(&outbox.Message{Topic: "b"}) || value(t, counter) != 0 {
		t.Error("what another destination selects is counted as unselected")
	}
}

func TestTheDestinationsOfATableCountWhatNoneOfThemSelects(t *testing.T) {
	t.Parallel()
	destinations := []config.Destination{{Name: "own", Topics: []string{"a"}, Source: &config.Source{Table: "t"}},
		{Name: "b", Topics: []string{"b"}}, {Name: "all", Source: &config.Source{Table: "u"}},
		{Name: "beside", Topics: []string{"c"}, Source: &config.Source{Table: "t"}}}
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "x"})
	s := newSelection(config.Config{Destinations: destinations}, counter, firsts(), slog.New(slog.DiscardHandler))
	rules, err := destinations[0].Table().Parse()
	if err != nil {
		t.Fatal(err)
	}
	if s.filter(0, rules)(&outbox.Message{Topic: "c"}) || value(t, counter) != 0 {
		t.Error("a row that another destination of the table selects is counted")
	}
	if s.filter(0, rules)(&outbox.Message{Topic: "b"}) || value(t, counter) != 1 {
		t.Error("a row that a destination of another table would want is not counted")
	}
	if s.filter(1, rules)(&outbox.Message{Topic: "a"}) || value(t, counter) != 2 {
		t.Error("a message of the outbox that destinations of other tables would want is not counted")
	}
}

func TestADestinationWithARateReadsNoMoreThanItSendsBeforeTheEnd(t *testing.T) {
	t.Parallel()
	d := fields.Default[config.Destination]()
	if c := paced(d, config.Quota{}, 1); !reflect.DeepEqual(c, d.Engine()) {
		t.Errorf("without a rate: %+v", c)
	}
	all := d.Delivery
	for rate, want := range map[int][2]int{1: {1, 5}, 100: {10, 500}, 5000: {500, all.MaxInFlight}, 1000000: {all.Batch, all.MaxInFlight}} {
		d.Rate = rate
		if c := paced(d, config.Quota{}, 1); c.Batch != want[0] || c.MaxInFlight != want[1] {
			t.Errorf("rate %d: batch %d, in flight %d, want %v", rate, c.Batch, c.MaxInFlight, want)
		}
	}
	d.DrainTimeout, d.Rate = 5*time.Second, 100
	if c := paced(d, config.Quota{}, 1); c.MaxInFlight != 250 {
		t.Errorf("with five seconds to drain: %d in flight", c.MaxInFlight)
	}
}
