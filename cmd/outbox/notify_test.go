package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/notify"
)

// hook is a receiver of Slack's format.
type hook struct {
	*httptest.Server
	mu    sync.Mutex
	texts []string
}

func newHook(t *testing.T) *hook {
	h := &hook{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Text string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.texts = append(h.texts, body.Text)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) all() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.texts, "\n")
}

// transactionOutbox is a table of somebody's with rows of which every third won't be taken.
const transactionOutbox = `
CREATE SCHEMA p2p;
CREATE TABLE p2p.transaction_outbox (
    id uuid DEFAULT gen_random_uuid() NOT NULL PRIMARY KEY, idempotency_key TEXT NOT NULL, transaction_type TEXT NOT NULL,
    transaction_ref_id TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'pending', payload JSONB NOT NULL, create_time TIMESTAMPTZ DEFAULT now(),
    processed_time TIMESTAMPTZ, last_attempt_time TIMESTAMPTZ, retry_count INT DEFAULT 0, error_message TEXT
);
INSERT INTO p2p.transaction_outbox (idempotency_key, transaction_type, transaction_ref_id, payload)
SELECT 'i' || n, 'order_create', 'ref-' || n, jsonb_build_object('bad', n % 3 = 0) FROM generate_series(1, 60) n`

func TestPeopleAreToldWhenTheRetriesOfATransactionAreSpent(t *testing.T) {
	t.Parallel()
	d := emptyDatabase(t)
	d.exec(transactionOutbox)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Bad bool }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Bad {
			http.Error(w, "the ledger is <closed>", http.StatusInternalServerError)
		}
	}))
	defer receiver.Close()
	h, file, address := newHook(t), filepath.Join(t.TempDir(), "notified.json"), freeAddress(t)
	relay := d.relay(fmt.Sprintf(`
http: {listen: %q}
notify: {webhook: {url: %q}, command: {argv: [tee, -a, %q]}}
destinations:
  - name: payments
    source: {preset: transaction_outbox}
    broker: {http: {url: %q, allow_networks: [127.0.0.1]}}
    delivery: {max_attempts: 3, backoff: {initial: 10ms, max: 20ms}, outage: {after: 0}}
`, address, h.URL+"/services/hidden", file, receiver.URL))
	until(t, "every transaction has its end", func() bool {
		return d.int(`SELECT count(*) FROM p2p.transaction_outbox WHERE status IN ('processed', 'failed')`) == 60
	})
	if n := d.int(`SELECT count(*) FROM p2p.transaction_outbox WHERE status = 'failed' AND retry_count = 3 AND error_message LIKE '%the ledger is <closed>%'`); n != 20 {
		t.Errorf("%d transactions have failed, want 20", n)
	}
	until(t, "the webhook is called", func() bool { return h.all() != "" })
	until(t, "the metric counts it", func() bool {
		_, text := get(t, "http://"+address+"/metrics")
		return strings.Contains(text, `outbox_notifications_total{channel="webhook",database="default",destination="payments",result="sent"} 1`) &&
			strings.Contains(text, `outbox_notifications_total{channel="command",database="default",destination="payments",result="sent"} 1`)
	})
	if code := relay.stop(); code != exitOK { // and sends what is left
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"destination payments: ", "dead letter", "exhausted after 3 attempts",
		"the ledger is &lt;closed&gt;", "deduplication key i", ", row ", "outbox tables dead --destination payments",
		"once more: outbox tables requeue --destination payments "} {
		if !strings.Contains(h.all(), want) {
			t.Errorf("the webhook was not told %q:\n%s", want, h.all())
		}
	}
	if strings.Contains(relay.stderr.String(), "hidden") {
		t.Error("the log has the webhook's URL")
	}
	written, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer written.Close()
	dead := 0
	for decoder := json.NewDecoder(written); decoder.More(); {
		var n notify.Notification
		if err := decoder.Decode(&n); err != nil {
			t.Fatal(err)
		}
		dead += n.DeadLetters
		for _, m := range n.First {
			if m.Next != "outbox tables requeue --destination payments "+m.Row || m.DedupKey == "" {
				t.Errorf("a message is described by %+v", m)
			}
		}
	}
	if dead != 20 {
		t.Errorf("the command was told of %d dead letters, want 20", dead)
	}
}

func TestAFrozenReceiverOfNotificationsHoldsUpNoDelivery(t *testing.T) {
	t.Parallel()
	d := setup(t)
	came, thaw := make(chan struct{}, 100), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		came <- struct{}{}
		<-thaw
	}))
	defer server.Close()
	defer close(thaw)
	relay := d.relay(d.fileYAML("    notify: {collect: 1ms, webhook: {url: '" + server.URL + "', timeout: 10m}}\n"))
	d.exec(`INSERT INTO outbox.messages (topic, headers) VALUES ('broken', '[1]')`)
	<-came
	d.publish("orders", 20)
	d.exec(`INSERT INTO outbox.messages (topic, headers) SELECT 'broken', '[1]' FROM generate_series(1, 3000)`)
	d.publish("orders", 20)
	until(t, "the file has all", func() bool { return d.count() == 400 })
	until(t, "the dead letters are there", func() bool { return d.int(`SELECT count(*) FROM outbox.dead_letters`) == 3001 })
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if log := relay.stderr.String(); !strings.Contains(log, `"msg":"notification dropped"`) || !strings.Contains(log, `"messages":3000`) {
		t.Error("the log doesn't say what was dropped")
	}
}

func TestPeopleAreToldThatADestinationGaveUp(t *testing.T) {
	t.Parallel()
	d := setup(t)
	h := newHook(t)
	relay := d.relay("http: {listen: ''}\nnotify: {webhook: {url: '" + h.URL + "'}}\n" +
		"destinations:\n  - {name: strict, delivery: {on_exhausted: stop}, broker: {stdout: {}}}\n")
	d.exec(`INSERT INTO outbox.messages (topic, headers) VALUES ('broken', '[1]')`)
	if code := relay.wait(); code != exitError {
		t.Errorf("exit code %d", code)
	}
	if got := h.all(); !strings.Contains(got, "destination strict: it gave up") {
		t.Errorf("the webhook was told %q", got)
	}
}

func TestNotificationsThatCannotBeSentAreFaultsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	d := emptyDatabase(t)
	file := filepath.Join(d.folder, "outbox.yaml")
	if err := os.WriteFile(file, []byte("notify: {webhook: {url: nonsense}, command: {argv: [/no/such/program]}}\n"+
		"destinations:\n  - {name: a, broker: {stdout: {}}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"relay"}, {"config", "validate"}} {
		d.outbox(append(args, "--config", file)...).want(exitConfig, "notify.webhook.url: not a URL",
			"notify.command.argv: the program can't be run")
	}
}
