package faults

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/proof/rig"
	"github.com/pgoutbox/outbox/proof/rig/rigtest"
)

// mostMemory is what a relay with default settings may have in memory, in MiB, its program included, of which up to
// 15 MiB are read.
const mostMemory = 80

// A backlog grows while the broker is away; what the relay has of it stays bounded, and so does its number of
// goroutines, which is the old one again when the broker is back.
func TestAnOutageUnderLoadCostsNoMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("a process's memory is read from /proc, which Linux has")
	}
	onEach(t, func(t *testing.T, w *world) {
		away := outage(t, 5*time.Second)
		w.size = 1000
		w.write(time.Millisecond)
		listen := rigtest.Address(t)
		r := w.start("relay-1",
			fmt.Sprintf("name: relay-1\ndatabase: {url: %q}\nhttp: {listen: %q}\ndestinations:\n  - name: events\n    broker: %s\n",
				w.pg.URL("postgres"), listen, w.broker.yaml))
		w.flowing()
		before := look(t, r, listen)
		w.must(w.broker.server.Kill9())
		began := time.Now()
		most := before
		for next := away / 20; time.Since(began) < away; next += away / 20 {
			w.must(rig.Pause(t.Context(), time.Until(began.Add(next))))
			now := look(t, r, listen)
			t.Logf("%6.1f s away: %v", time.Since(began).Seconds(), now)
			most.goroutines = max(most.goroutines, now.goroutines)
		}
		w.must(w.broker.server.Restart(t.Context()))
		_, err := w.load.Flows(t.Context(), await.Patience+2*away)
		w.must(err)
		var after glance
		await.UntilElse(t, func() bool {
			after = look(t, r, listen)
			return after.goroutines <= before.goroutines
		}, func() string {
			return fmt.Sprintf("%d goroutines as before the outage; there are %d", before.goroutines, after.goroutines)
		})
		t.Logf("before: %v; after: %v; during the outage at most %d goroutines", before, after, most.goroutines)
		if after.peak >= mostMemory {
			t.Errorf("the relay had %.1f MiB in memory, want less than %d", after.peak, mostMemory)
		}
		w.settle(1)
	})
}

// glance is what a relay's process uses.
type glance struct {
	resident, peak float64 // MiB
	goroutines     int
}

func (g glance) String() string {
	return fmt.Sprintf("%.1f MiB (peak %.1f), %d goroutines", g.resident, g.peak, g.goroutines)
}

// look asks the kernel and the relay's metrics.
func look(t *testing.T, r *rig.Relay, listen string) (g glance) {
	t.Helper()
	g.resident, g.peak = rig.RSS(r.PID()), rig.PeakRSS(r.PID())
	metrics, err := get(listen, "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	g.goroutines = int(field(t, metrics, "\ngo_goroutines "))
	return g
}

// field returns the number behind a name.
func field(t *testing.T, text, name string) float64 {
	t.Helper()
	_, rest, found := strings.Cut(text, name)
	if values := strings.Fields(rest); found && len(values) > 0 {
		if n, err := strconv.ParseFloat(values[0], 64); err == nil {
			return n
		}
	}
	t.Fatalf("no number behind %s", name)
	return 0
}
