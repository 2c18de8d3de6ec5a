package faults

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/proof/rig"
	"github.com/pgoutbox/outbox/proof/rig/rigtest"
)

// A topic that doesn't exist is an outage of that topic: what goes there waits and no attempt is counted, the others
// flow, the verdict names the topic, and once it is created everything arrives, in order. It is missing for as long as
// OUTBOX_TOPIC_MISSING_FOR says; the log has the other topic's latency before and meanwhile.
func TestAMissingTopicHoldsUpNothingElseAndLosesNothing(t *testing.T) {
	w := newWorld(t, onKafka)
	w.write(2 * time.Millisecond)
	broker := w.broker.Target.(rig.KafkaTopic)
	later := rig.KafkaTopic{Addr: broker.Addr, Topic: "later"}
	listen, missing := rigtest.Address(t), 5*time.Second
	if text := os.Getenv("OUTBOX_TOPIC_MISSING_FOR"); text != "" {
		var err error
		missing, err = time.ParseDuration(text)
		w.must(err)
	}
	w.start("relay-1", fmt.Sprintf("name: relay-1\ndatabase: {url: %q}\nhttp: {listen: %q}\ndestinations:\n  - name: "+
		"events\n    broker: {kafka: {brokers: [%q]}}\n",
		w.pg.URL("postgres"), listen, broker.Addr))
	w.flowing()
	begun := w.latencies(listen)
	w.must(rig.Pause(t.Context(), missing))
	before := w.latencies(listen)
	const messages, keys = 2000, 100
	for n := range 4 { // some before it is known that the topic is missing, some after
		_, err := w.load.Pool().Exec(t.Context(), `SELECT outbox.publish('later', to_jsonb(n), key => 'later-' || n % $3)
			FROM generate_series($1::int, $2::int) n`, n*messages/4, (n+1)*messages/4-1, keys)
		w.must(err)
		w.flowing()
	}
	verdict := func() health.Verdict {
		conn, err := w.load.Pool().Acquire(t.Context())
		w.must(err)
		defer conn.Release()
		report, err := health.Status(t.Context(), conn.Conn())
		w.must(err)
		return report.Verdict
	}
	w.eventually("the verdict names the topic", func() bool {
		v := verdict()
		return v.State == health.StateFailing && strings.Contains(v.Cause, `topic "later" doesn't exist; create it`)
	})
	w.eventually("the messages are held", func() bool { return w.count("FROM outbox.holds WHERE topic = 'later'") == messages })
	w.must(rig.Pause(t.Context(), missing))
	w.flowing()
	meanwhile := w.latencies(listen)
	t.Logf("before: %s; while the other topic was missing: %s", before.since(begun), meanwhile.since(before))
	if n := w.count("FROM outbox.holds WHERE topic = 'later' AND attempts > 0"); n > 0 {
		t.Errorf("%d messages have attempts counted", n)
	}
	if n := w.count("FROM outbox.holds WHERE topic <> 'later'"); n > 0 {
		t.Errorf("%d messages of the other topic are held", n)
	}
	w.must(later.Create(t.Context()))
	w.eventually("the holds are gone", func() bool { return w.count("FROM outbox.holds") == 0 })
	w.eventually("the verdict is right again", func() bool { return verdict().State.OK() })
	if n := w.count("FROM outbox.dead_letters"); n > 0 {
		t.Errorf("%d dead letters", n)
	}
	last, seen := map[int]int{}, 0
	w.must(rig.ReadAll(t.Context(), later, func(payload []byte) {
		var n int
		if _, err := fmt.Sscan(string(payload), &n); err != nil {
			t.Fatalf("payload %q: %v", payload, err)
		}
		seen++
		if before, any := last[n%keys]; any && before >= n {
			t.Errorf("key later-%d: %d came behind %d", n%keys, n, before)
		}
		last[n%keys] = n
	}))
	if seen != messages {
		t.Errorf("%d messages came, want %d", seen, messages)
	}
}

// latencies are how many messages were delivered within each of the relay's buckets of seconds, the widest last.
type latencies []struct{ within, messages float64 }

var bucketLine = regexp.MustCompile(`(?m)^outbox_insert_to_ack_seconds_bucket\{.*le="([^"]+)"\} (\S+)$`)

// latencies asks the relay's metrics.
func (w *world) latencies(listen string) (all latencies) {
	w.t.Helper()
	text, err := get(listen, "/metrics")
	w.must(err)
	for _, m := range bucketLine.FindAllStringSubmatch(text, -1) {
		within, err := strconv.ParseFloat(m[1], 64)
		w.must(err)
		messages, err := strconv.ParseFloat(m[2], 64)
		w.must(err)
		all = append(all, struct{ within, messages float64 }{within, messages})
	}
	if len(all) == 0 {
		w.t.Fatal("the relay's metrics have no latencies")
	}
	return all
}

// since says in which buckets the median and the 99th percentile of what came after earlier are.
func (l latencies) since(earlier latencies) string {
	at := func(i int) float64 { return l[i].messages - earlier[i].messages }
	total := at(len(l) - 1)
	quantile := func(q float64) float64 {
		i := 0
		for at(i) < q*total {
			i++
		}
		return l[i].within * 1000
	}
	return fmt.Sprintf("%.0f messages, p50 within %g ms, p99 within %g ms", total, quantile(0.5), quantile(0.99))
}

// count is the number of rows of a query, which begins with its FROM.
func (w *world) count(from string) (n int) {
	w.t.Helper()
	w.must(w.load.Pool().QueryRow(w.t.Context(), "SELECT count(*) "+from).Scan(&n))
	return n
}

// eventually waits until something is so. To ask may be dear.
func (w *world) eventually(what string, so func() bool) {
	w.t.Helper()
	ctx := await.Context(w.t)
	for !so() {
		if rig.Pause(ctx, 50*time.Millisecond) != nil {
			w.t.Fatalf("never: %s", what)
		}
	}
}
