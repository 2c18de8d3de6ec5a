package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/internal/testnet"
	"github.com/pgoutbox/outbox/relay"
)

// While the database hangs, probes are answered, by what the relay knows; and they are right again soon after.
func TestADatabaseThatHangsIsNamedAndForgottenSoonAfter(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	conn, err := pgx.Connect(t.Context(), testdb.Installed(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	proxy, address := testnet.Before(t, conn.Config())

	cfg := fields.Default[config.Config]()
	cfg.Name, cfg.HTTP.Listen = "relay", "127.0.0.1:0"
	to := fields.Default[config.Destination]()
	to.Name, to.Broker.Stdout, to.Lease = "all", &brokers.Stdout{}, await.Expiry(time.Second)
	cfg.Destinations = []config.Destination{to}
	d, err := New([]Database{{Name: config.DefaultDatabase, Origin: "the test", Conn: address, Config: cfg}},
		Options{Stdout: &lines{came: make(chan struct{}, 1)}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if r := d.units[0].watch.readiness(); r.Ready || r.Cause != "all: starting" {
		t.Errorf("before it runs: %+v", r)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	until := func(what string, so func() bool) {
		t.Helper()
		await.UntilElse(t, so, func() string {
			return fmt.Sprintf("%s: %+v, %+v", what, d.units[0].watch.health(), d.units[0].watch.readiness())
		})
	}
	well := func() bool {
		h := d.units[0].watch.health()
		return h.State.OK() && h.Age < health.ReadWithin.Seconds() && d.units[0].watch.readiness().Ready
	}
	until("all is well", well)
	if err := proxy.Freeze(); err != nil {
		t.Fatal(err)
	}
	until("looks have been given up", func() bool {
		h := d.units[0].watch.health()
		return h.State == health.StateBroken && h.Age > health.ReadWithin.Seconds() && !d.units[0].watch.readiness().Ready
	})
	if err := proxy.Thaw(); err != nil {
		t.Fatal(err)
	}
	until("all is well again", well)
}

func TestReadinessIsAboutThisProcess(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		states []relay.State
		age    time.Duration
		ready  bool
	}{
		{[]relay.State{relay.StateFlowing, relay.StateWaiting}, time.Second, true},
		{[]relay.State{relay.StateStalled, relay.StateFailing}, time.Second, true}, // a broker's outage stops no rollout
		{[]relay.State{relay.StateFlowing}, time.Minute, true},                     // a look is slow, and the database answers
		{[]relay.State{relay.StateWaiting}, time.Minute, false},
		{[]relay.State{relay.StateFlowing, relay.StateBroken}, time.Second, false},
		{[]relay.State{relay.StateFlowing, relay.StateStopped}, time.Second, false},
	} {
		w := newWatch("relay", nil, slog.New(slog.DiscardHandler), nil)
		w.readAt = time.Now().Add(-c.age)
		w.report = &health.Report{At: w.readAt}
		for i, state := range c.states {
			w.starting("d", i, true)
			w.note("d", i, state, nil)
		}
		if r := w.readiness(); r.Ready != c.ready || r.Ready == (r.Cause != "") || len(r.Work) != len(c.states) {
			t.Errorf("%v, %v after a look: %+v", c.states, c.age, r)
		}
	}
}

func TestTheVerdictIsAMetric(t *testing.T) {
	t.Parallel()
	m := newMetrics(newBook(prometheus.NewRegistry(), "default"))
	w := newWatch("relay", m, slog.New(slog.DiscardHandler), nil)
	w.starting("kafka", 0, false)
	w.note("kafka", 0, relay.StateStalled, context.DeadlineExceeded)
	newStates(m.book, func() map[string]health.Verdict { return w.health().Destinations })
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for _, f := range families {
		if f.GetName() != "outbox_destination_state" {
			continue
		}
		if n := len(f.GetMetric()); n != len(health.States()) {
			t.Errorf("%d states", n)
		}
		for _, metric := range f.GetMetric() {
			if metric.GetGauge().GetValue() == 1 {
				for _, label := range metric.GetLabel() {
					named = append(named, label.GetValue())
				}
			}
		}
	}
	if got := strings.Join(named, " "); got != "default kafka stalled" {
		t.Errorf("the metric names %q", got)
	}
}

func TestThePagesSayHowOftenTheDatabaseIsLookedAt(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"console.md", "operations.md", "design.md"} {
		text, err := os.ReadFile("../../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("looks at the database every %.0f s", lookEvery.Seconds())
		if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), want) {
			t.Errorf("docs/%s doesn't say that a relay %s", page, want)
		}
	}
}
