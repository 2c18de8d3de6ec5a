package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
)

// event writes one message of a key.
func (d *database) event(topic, key string, n int) {
	d.t.Helper()
	d.exec(`SELECT outbox.publish($1, $2::text, key => $3)`, topic, fmt.Sprint(n), key)
}

func TestATopicIsPausedWhileTheRestFlows(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.outbox("pause", "file", "--yes").want(exitNotFound, "no relay has delivered to", "--unseen")
	d.outbox("pause", "file", "--topic", "orders", "--unseen", "--for", "1h", "--dry-run").want(exitOK)
	d.outbox("controls").want(exitOK, "none")
	d.outbox("pause", "file", "--topic", "orders", "--unseen", "--reason", "their migration", "--actor", "anna").want(exitUsage, "--yes")
	d.outbox("pause", "file", "--topic", "orders", "--unseen", "--reason", "their migration", "--actor", "anna", "--for", "1h", "--yes").
		want(exitOK, `paused topic "orders" of file until`)
	relay := d.relay(d.fileYAML(""))
	for n := range 3 {
		d.event("orders", "a", n)
		d.event("bills", "b", n)
	}
	d.event("bills", "a", 3) // behind what is paused of its key
	until(t, "the rest is delivered", func() bool { return len(d.delivered()["b"]) == 3 && d.int(`SELECT count(*) FROM outbox.holds`) == 4 })
	if n := d.int(`SELECT max(attempts) FROM outbox.holds`); n != 0 {
		t.Errorf("%d attempts were counted", n)
	}
	d.outbox("status").want(exitOK, "PAUSED", `topic "orders" paused by anna until`, "(their migration)", "outbox resume file --topic orders")
	d.outbox("controls").want(exitOK, "file", "orders", "paused", "anna", "their migration")

	// Who takes over knows of it.
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	d.relay(d.fileYAML(""))
	d.event("bills", "b", 3)
	until(t, "the rest is delivered", func() bool { return len(d.delivered()["b"]) == 4 })
	if got := d.delivered()["a"]; len(got) != 0 {
		t.Errorf("%q was delivered of what is paused", got)
	}
	d.outbox("resume", "file").want(exitNotFound, "outbox resume file --topic orders")
	d.outbox("resume", "file", "--topic", "orders", "--actor", "ben").want(exitOK, `resumed topic "orders" of file`, "anna")
	until(t, "all is delivered", func() bool { return len(d.delivered()["a"]) == 4 })
	if got := d.delivered()["a"]; !slices.Equal(got, []string{`"0"`, `"1"`, `"2"`, `"3"`}) {
		t.Errorf("delivered in the order %q", got)
	}
	d.settled(8)
	if n := d.int(`SELECT count(*) FROM outbox.audit WHERE verb IN ('pause', 'resume') AND actor IN ('anna', 'ben')`); n != 2 {
		t.Errorf("%d rows in the audit", n)
	}
}

func TestADestinationIsPausedWhileAnotherFlows(t *testing.T) {
	t.Parallel()
	d := setup(t)
	other := "  - name: other\n    lease: 30s\n    broker: {file: {path: " + d.file() + ".other}}\n"
	d.outbox("pause", "file", "--unseen", "--yes").want(exitOK, "paused file until it is ended")
	d.relay(d.fileYAML(other))
	for n := range 5 {
		d.event("orders", "a", n)
	}
	until(t, "the other one has all, and this one a relay", func() bool {
		return d.int(`SELECT coalesce(sum(delivered), 0) FROM outbox.cursors WHERE destination = 'other'`) == 5 &&
			d.int(`SELECT count(*) FROM outbox.cursors WHERE destination = 'file' AND owner IS NOT NULL`) == 1
	})
	d.outbox("status").want(exitOK, "PAUSED", "file: paused by", "outbox resume file")
	if n := d.count(); n != 0 {
		t.Errorf("%d messages were delivered", n)
	}
	// A pause that ends by itself.
	d.exec(`UPDATE outbox.controls SET until = clock_timestamp() + interval '1 s'`)
	until(t, "all is delivered", func() bool { return d.count() == 5 })
	d.outbox("controls").want(exitOK, "none")
	d.outbox("status").want(exitOK).never("PAUSED")
}

func TestADestinationIsThrottledAlive(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.outbox("throttle", "file", "--rate", "2", "--unseen", "--yes", "--actor", "anna").want(exitOK,
		"at most 2 messages a second until it is ended")
	d.relay(d.fileYAML(""))
	d.publish("orders", 100)
	until(t, "it flows", func() bool { return d.count() > 0 })
	d.outbox("status").want(exitOK, "at most 2 messages a second by anna")
	if n := d.count(); n >= 1000 {
		t.Errorf("all %d messages were delivered at once", n)
	}
	d.outbox("throttle", "file", "--rate", "-1").want(exitUsage, "--rate")
	d.outbox("throttle", "file", "--rate", "0", "--actor", "ben").want(exitOK, "bound by its configuration alone")
	until(t, "all is delivered", func() bool { return d.count() == 1000 })
	for key, list := range d.delivered() {
		for i, payload := range list {
			if strings.Trim(payload, `"`) != fmt.Sprint(i) {
				t.Fatalf("%s: %q", key, list)
			}
		}
	}
	d.outbox("throttle", "file", "--rate", "0").want(exitNotFound, "nothing is paused or throttled")
}

// After a receiver was repaired, nobody waits for the time of the next attempt.
func TestWhatFailsIsTriedAgainAtOnce(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	d := setup(t)
	var repaired atomic.Bool
	var got atomic.Int32
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !repaired.Load() {
			http.Error(w, "not now", http.StatusInternalServerError)
			return
		}
		got.Add(1)
	}))
	defer receiver.Close()
	d.outbox("retry", "hook", "--yes").want(exitNotFound, "no relay has delivered to")
	d.relay(d.fileYAML(fmt.Sprintf("  - name: hook\n    broker: {http: {url: %q, allow_networks: [127.0.0.1]}}\n"+
		"    delivery: {backoff: {initial: 1h, max: 1h}, outage: {after: 1000}}\n", receiver.URL)))
	until(t, "there is a cursor", func() bool { return d.int(`SELECT count(*) FROM outbox.cursors WHERE destination = 'hook'`) == 1 })
	d.outbox("retry", "hook", "--yes").want(exitNotFound, "no key there has failed")
	for key := range 3 {
		d.event("orders", fmt.Sprint(key), 1)
	}
	until(t, "all have failed", func() bool {
		return d.int(`SELECT count(*) FROM outbox.holds WHERE retry_at > now() + interval '20 minutes' AND error IS NOT NULL`) == 3
	})
	until(t, "the verdict has the command", func() bool { return strings.Contains(d.outbox("status").stdout, "outbox retry hook") })
	repaired.Store(true)
	d.outbox("retry", "hook").want(exitUsage, "--yes")
	d.outbox("retry", "hook", "--dry-run").want(exitOK)
	d.outbox("retry", "hook", "--key", "1", "--yes", "--reason", "repaired").want(exitOK, "1 keys of hook are due")
	until(t, "one is delivered", func() bool { return got.Load() == 1 })
	d.outbox("retry", "hook", "--yes", "--reason", "repaired").want(exitOK, "2 keys of hook are due")
	until(t, "all are delivered", func() bool { return got.Load() == 3 })
	until(t, "nothing waits", func() bool { return d.int(`SELECT count(*) FROM outbox.holds`) == 0 })
}
