package daemon

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

// docs/metrics.md has every metric between two marks, as the code describes it.
func TestThePageOfMetricsIsCurrent(t *testing.T) {
	t.Parallel()
	m := newMetrics(newBook(prometheus.NewRegistry(), "default"))
	newNotifications(config.Config{}, "", m, nil)
	newStates(m.book, nil)
	p := newBook(prometheus.NewRegistry(), "")
	newProcess(p, Options{limits: newLimits(config.Limits{})}, &brokers.Pool{})
	newFleetMetrics(p)
	newSums(p, 0, nil)
	m.entries = append(m.entries, p.entries...)
	slices.SortFunc(m.entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	var table strings.Builder
	fmt.Fprint(&table, "| metric | kind | labels | meaning |\n|---|---|---|---|\n")
	for _, e := range m.entries {
		labels := ""
		if len(e.labels) > 0 {
			labels = "`" + strings.Join(e.labels, "`, `") + "`"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", e.name, e.kind, labels, e.help)
	}
	file := filepath.Join("..", "..", "..", "docs", "metrics.md")
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- metrics -->\n", "<!-- end of metrics -->"
	before, rest, found := strings.Cut(string(page), begin)
	now, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		t.Fatalf("%s has no marks", file)
	}
	if now == table.String() {
		return
	}
	if !*update {
		t.Fatalf("differs from %s; go test ./internal/daemon -update writes it\n got:\n%s\nwant:\n%s", file, now, table.String())
	}
	if err := os.WriteFile(file, []byte(before+begin+table.String()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func scrape(t *testing.T, m *metrics) string {
	t.Helper()
	request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	request.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(answer, request)
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestWhatIsTriedAgainIsCountedByABoundedNumberOfEventTypes(t *testing.T) {
	t.Parallel()
	m := newMetrics(newBook(prometheus.NewRegistry(), "default"))
	o, ages := m.observer("kafka", 0, nil), make([]time.Duration, 3)
	for i := range maxEventTypes + 10 {
		batch := []*outbox.Message{{EventType: fmt.Sprint("type-", i)}, {EventType: "refused"}, {EventType: "accepted"}}
		o.Published(batch, []error{errors.New("not now"), outbox.Permanent(errors.New("never")), nil}, ages, time.Millisecond)
	}
	o.Published([]*outbox.Message{{EventType: "type-0"}}, []error{outbox.Unavailable(errors.New("down"))}, ages, time.Millisecond)
	text := scrape(t, m)
	for _, line := range []string{`event_type="type-0"} 2.0`, `event_type="type-49"} 1.0`, `event_type="(other)"} 10.0`} {
		if !strings.Contains(text, `outbox_retries_total{database="default",destination="kafka",`+line+"\n") {
			t.Errorf("no %s in:\n%s", line, text)
		}
	}
	if n := strings.Count(text, "outbox_retries_total{"); n != maxEventTypes+1 {
		t.Errorf("%d event types", n)
	}
}

func TestTheLatencyHasTheTraceOfASampledMessage(t *testing.T) {
	t.Parallel()
	const trace = "0af7651916cd43dd8448eb211c80319c"
	for parent, want := range map[string]bool{
		"00-" + trace + "-b7ad6b7169203331-01":        true,
		"00-" + trace + "-b7ad6b7169203331-00":        false,
		"00-" + trace[:31] + "\"-b7ad6b7169203331-01": false,
		"nonsense": false,
	} {
		m := newMetrics(newBook(prometheus.NewRegistry(), "default"))
		message := &outbox.Message{CreatedAt: time.Now(), Headers: []outbox.Header{{Name: "traceparent", Value: parent}}}
		m.observer("kafka", 0, nil).Published([]*outbox.Message{message}, nil, make([]time.Duration, 3), time.Millisecond)
		if got := strings.Contains(scrape(t, m), `# {trace_id="`+trace+`"}`); got != want {
			t.Errorf("%s: an exemplar %v, want %v", parent, got, want)
		}
	}
}

func TestALookAndAPublishedMessageSetTheirTimes(t *testing.T) {
	t.Parallel()
	m := newMetrics(newBook(prometheus.NewRegistry(), "default"))
	if strings.Contains(scrape(t, m), "outbox_last_published_timestamp_seconds{") {
		t.Error("a time, and nothing was published")
	}
	m.observer("kafka", 0, nil).Published([]*outbox.Message{{}}, nil, make([]time.Duration, 3), time.Millisecond)
	held := time.Unix(1700000000, 0)
	m.sample(&health.Report{At: time.Now(), Destinations: []health.Destination{
		{Name: "kafka", Held: health.Held{Oldest: held}, Slot: &health.Slot{Kept: 4096}}, {Name: "other"},
	}}, func(name string) bool { return name == "kafka" })
	text := scrape(t, m)
	for _, part := range []string{`outbox_last_published_timestamp_seconds{database="default",destination="kafka"} `,
		`outbox_oldest_held_timestamp_seconds{database="default",destination="kafka"} 1.7e+09`, `outbox_slot_retained_bytes{database="default",destination="kafka"} 4096.0`} {
		if !strings.Contains(text, part) {
			t.Errorf("no %s in:\n%s", part, text)
		}
	}
}
