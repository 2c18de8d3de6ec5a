package http_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/webhook"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// recorder keeps the requests that it answered.
type recorder struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	bodies   [][]byte
}

func newRecorder(t testing.TB, status func(n int) int) *recorder {
	t.Helper()
	r := &recorder{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		r.requests, r.bodies = append(r.requests, req), append(r.bodies, body)
		n := len(r.requests)
		r.mu.Unlock()
		w.WriteHeader(status(n))
	}))
	t.Cleanup(r.Close)
	return r
}

func always(status int) func(int) int { return func(int) int { return status } }

func TestTheOfficialLibraryVerifiesWhatIsSentWhileASecretIsReplaced(t *testing.T) {
	t.Parallel()
	const next = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	rotating, err := webhook.ParseKeys(secret, next)
	if err != nil {
		t.Fatal(err)
	}
	r := newRecorder(t, func(n int) int { return map[bool]int{true: 500, false: 204}[n == 1] })
	b := newBroker(t, r.URL, webhooks.Config{Keys: rotating})
	m := message("k", 1)
	m.Payload = []byte(`{"test": 2432232314}`)
	brokertest.Deliver(patient(t), t, b, []*outbox.Message{m})
	if len(r.requests) != 2 {
		t.Fatalf("%d requests", len(r.requests))
	}
	for i, req := range r.requests {
		for _, text := range []string{secret, next} {
			official, err := standardwebhooks.NewWebhook(text)
			if err != nil {
				t.Fatal(err)
			}
			if err := official.Verify(r.bodies[i], req.Header); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		}
		if id := req.Header.Get("webhook-id"); id != m.ID.String() {
			t.Errorf("request %d has the id %s, not the message's %s", i, id, m.ID)
		}
	}
	stranger, err := standardwebhooks.NewWebhook("whsec_AAAAsBQIhrscChlQIMV+b5sSYspob7oD")
	if err != nil {
		t.Fatal(err)
	}
	if stranger.Verify(r.bodies[1], r.requests[1].Header) == nil {
		t.Error("a stranger's secret verifies")
	}
}

func TestFieldsStandInPathAndQuery(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, always(204))
	b := newBroker(t, r.URL+"/hooks/{topic}/x?type={event_type}&key={key}", webhooks.Config{})
	m := message("a&b=c", 1)
	m.Topic, m.EventType = "orders/é created", "x y#z"
	accepted(t, b.Publish(patient(t), []*outbox.Message{m}))
	if got, want := r.requests[0].RequestURI, "/hooks/orders%2F%C3%A9%20created/x?type=x+y%23z&key=a%26b%3Dc"; got != want {
		t.Errorf("path %s, want %s", got, want)
	}
	for _, topic := range []string{"..", ".", "a/../b", `..\admin`, "/", ""} {
		m.Topic = topic
		if errs := b.Publish(patient(t), []*outbox.Message{m}); len(errs) != 1 || kind(errs[0]) != "refused" {
			t.Errorf("topic %q: %v", topic, errs)
		}
	}
	if len(r.requests) != 1 {
		t.Errorf("%d requests", len(r.requests))
	}
}

func TestWhatHTTPCantCarryIsRefusedAndNamed(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, always(204))
	b := newBroker(t, r.URL, webhooks.Config{MaxPayload: 100})
	for text, m := range map[string]outbox.Message{
		"header name":      {Headers: []outbox.Header{{Name: "with space", Value: "x"}}},
		"reserved":         {Headers: []outbox.Header{{Name: "transfer-encoding", Value: "chunked"}}},
		`"webhook-id"`:     {Headers: []outbox.Header{{Name: "webhook-id", Value: "x"}}},
		`"Authorization"`:  {Headers: []outbox.Header{{Name: "Authorization", Value: "x"}}},
		"tell apart":       {Headers: []outbox.Header{{Name: "x", Value: "1"}, {Name: "X", Value: "2"}}},
		"takes 100 at mos": {Payload: make([]byte, 101)},
	} {
		m.ID, m.Topic = outbox.NewID(), "t"
		if errs := b.Publish(patient(t), []*outbox.Message{&m}); len(errs) != 1 ||
			kind(errs[0]) != "refused" || !strings.Contains(errs[0].Error(), text) {
			t.Errorf("%s: %v", text, errs)
		}
	}
	if len(r.requests) != 0 {
		t.Errorf("%d requests", len(r.requests))
	}
}

func TestCredentialsAndFixedHeadersAreSent(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, always(204))
	withUser := strings.Replace(r.URL, "http://", "http://us%40er:pass@", 1)
	for _, c := range []struct {
		url  string
		cfg  webhooks.Config
		want string
	}{
		{r.URL, webhooks.Config{Bearer: "abc"}, "Bearer abc"},
		{r.URL, webhooks.Config{User: "us@er", Password: "pass"}, "Basic dXNAZXI6cGFzcw=="},
		{withUser, webhooks.Config{}, "Basic dXNAZXI6cGFzcw=="},
		{withUser + "/{topic}", webhooks.Config{}, "Basic dXNAZXI6cGFzcw=="},
		{r.URL, webhooks.Config{}, ""},
	} {
		c.cfg.Header = http.Header{"X-Api-Key": {"key"}}
		m := message("k", 1)
		m.Headers = []outbox.Header{{Name: "x-api-key", Value: "not this"}, {Name: "traceparent", Value: "00-1"}}
		accepted(t, newBroker(t, c.url, c.cfg).Publish(patient(t), []*outbox.Message{m}))
		h := r.requests[len(r.requests)-1].Header
		if h.Get("Authorization") != c.want || h.Get("X-Api-Key") != "key" ||
			h.Get("Traceparent") != "00-1" || h.Get("User-Agent") != "pgoutbox" {
			t.Errorf("headers %v", h)
		}
	}
}

func TestABatchThatIsRefusedAsAWholeIsHalvedUntilTheCulpritIsKnown(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	var got brokertest.Seen
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		requests.Add(1)
		body, _ := io.ReadAll(req.Body)
		batch, err := webhook.ReadBatch(body)
		if err != nil {
			t.Error(err)
		}
		for _, m := range batch {
			if string(m.Payload) == "poison" {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
		}
		for _, m := range batch {
			got.Note(m)
		}
	}))
	defer s.Close()
	b := newBroker(t, s.URL, webhooks.Config{Batch: 64})
	batch := messages(64, 8)
	batch[19].Payload = []byte("poison") // key k3, its third
	errs := b.Publish(patient(t), batch)
	for i, err := range errs {
		want := "accepted"
		if i == 19 {
			want = "retried"
		} else if i > 19 && i%8 == 3 {
			want = "skipped"
		}
		if kind(err) != want {
			t.Errorf("message %d: %v, want %s", i, err, want)
		}
	}
	if n := requests.Load(); n > 16 {
		t.Errorf("%d requests", n)
	}
	var rest []*outbox.Message
	for i, m := range batch {
		if i != 19 && !(i > 19 && i%8 == 3) {
			rest = append(rest, m)
		}
	}
	got.Check(t, rest)
}

// A time beyond the year 9999, which PostgreSQL has, can't be in a batch.
func TestAMessageThatABatchCanNotHaveIsRefusedAlone(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, always(http.StatusOK))
	b := newBroker(t, r.URL, webhooks.Config{Batch: 64})
	batch := messages(20, 20)
	batch[7].DeliverAt = time.Date(20231, 1, 1, 0, 0, 0, 0, time.UTC)
	brokertest.CheckRefused(t, batch, b.Publish(patient(t), batch), 7)
}

// Neither does a call look for such messages without end: what it has not decided costs no attempt.
func TestASearchForMessagesThatABatchCanNotHaveEnds(t *testing.T) {
	t.Parallel()
	b := newBroker(t, newRecorder(t, always(http.StatusOK)).URL, webhooks.Config{Batch: 1000})
	batch := messages(600, 600)
	for _, m := range batch {
		m.DeliverAt = time.Date(20231, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	kinds := map[string]int{}
	for _, err := range b.Publish(patient(t), batch) {
		kinds[kind(err)]++
	}
	if kinds["refused"] == 0 || kinds["skipped"] < 400 || kinds["refused"]+kinds["skipped"] != 600 {
		t.Errorf("outcomes %v", kinds)
	}
}

func TestTheReceiversResultsDecideOverAMessageOfABatch(t *testing.T) {
	t.Parallel()
	outcomes := map[string]error{"1": errors.New("no"), "2": outbox.Permanent(errors.New("never")),
		"3": outbox.Unavailable(errors.New("busy"))}
	r := newReceiver(t, webhook.Config{}, func(m *outbox.Message) error { return outcomes[string(m.Payload)] })
	r.Start()
	b := newBroker(t, r.URL, webhooks.Config{Batch: 100})
	batch := []*outbox.Message{message("a", 0), message("a", 1),
		message("a", 0), message("b", 2), message("c", 3), message("", 1), message("", 0), message("d", 0)}
	var kinds []string
	for _, err := range b.Publish(patient(t), batch) {
		kinds = append(kinds, kind(err))
	}
	if got, want := strings.Join(kinds, " "), "accepted retried skipped refused unavailable retried accepted accepted"; got != want {
		t.Errorf("outcomes %s, want %s", got, want)
	}
	if n := r.requests.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestAnAnswerThatLeavesResultsOutLeavesOutcomesUnknown(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"", "{\"status\":204}\n", "{\"status\":204}\n<html>", "{\"status\":204}\n{\"status\":0}"} {
		s := server(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusMultiStatus)
			_, _ = io.WriteString(w, answer)
		})
		errs := newBroker(t, s.URL, webhooks.Config{Batch: 10}).Publish(patient(t), messages(2, 1)) // of one key, so they go together
		if len(errs) != 2 || errs[1] == nil || (errs[0] == nil) != (answer != "") {
			t.Errorf("%q: %v", answer, errs)
		}
	}
}

func TestAReceiverWithAndWithoutTheClientsCertificate(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, webhook.Config{}, nil)
	r.EnableHTTP2 = true
	r.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	r.StartTLS()
	trusting := r.Client().Transport.(*http.Transport).TLSClientConfig
	if errs := newBroker(t, r.URL, webhooks.Config{}).Publish(patient(t), messages(1, 1)); len(errs) != 1 ||
		kind(errs[0]) != "unavailable" || !strings.Contains(errs[0].Error(), "not trusted") {
		t.Errorf("without the authority: %v", errs)
	}
	if errs := newBroker(t, r.URL, webhooks.Config{TLS: trusting}).Publish(patient(t), messages(1, 1)); len(errs) != 1 ||
		kind(errs[0]) != "unavailable" {
		t.Errorf("without a certificate: %v", errs)
	}
	mutual := trusting.Clone()
	mutual.Certificates = []tls.Certificate{r.TLS.Certificates[0]}
	accepted(t, newBroker(t, r.URL, webhooks.Config{TLS: mutual}).Publish(patient(t), messages(10, 3)))
	old := r.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	old.MaxVersion = tls.VersionTLS11
	if errs := newBroker(t, r.URL, webhooks.Config{TLS: old}).Publish(patient(t), messages(1, 1)); len(errs) != 1 {
		t.Errorf("with TLS 1.1: %v", errs)
	}
}

func TestHTTP2IsSpokenWithAndWithoutTLS(t *testing.T) {
	t.Parallel()
	var version atomic.Value
	note := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		version.Store(r.Proto)
	})
	s := httptest.NewUnstartedServer(note)
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	accepted(t, newBroker(t, s.URL, webhooks.Config{TLS: s.Client().Transport.(*http.Transport).TLSClientConfig}).Publish(patient(t),
		messages(5, 2)))
	if version.Load() != "HTTP/2.0" {
		t.Errorf("%v with TLS", version.Load())
	}
	plain := httptest.NewUnstartedServer(note)
	plain.Config.Protocols = new(http.Protocols)
	plain.Config.Protocols.SetUnencryptedHTTP2(true)
	plain.Start()
	defer plain.Close()
	accepted(t, newBroker(t, plain.URL, webhooks.Config{UnencryptedHTTP2: true}).Publish(patient(t), messages(5, 2)))
	if version.Load() != "HTTP/2.0" {
		t.Errorf("%v without TLS", version.Load())
	}
}

func TestRequestsGoThroughTheProxyThatIsConfigured(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, webhook.Config{}, nil)
	r.Start()
	var through atomic.Int64
	forward := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		through.Add(1)
		p.Out.URL.Host = r.Listener.Addr().String()
		p.Out.Host = p.In.Host
	}}
	proxy := httptest.NewServer(forward)
	defer proxy.Close()
	// The proxy looks the name up: no resolver here knows it.
	b, err := webhooks.New("http://receiver.example/hook", webhooks.Config{Keys: keys(), Proxy: proxy.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	accepted(t, b.Publish(patient(t), messages(3, 1)))
	if through.Load() != 3 || len(r.Messages()) != 3 {
		t.Errorf("%d requests through the proxy, %d messages received", through.Load(), len(r.Messages()))
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestConfigurationFaultsAreReportedTogetherAndShowNoSecrets(t *testing.T) {
	t.Parallel()
	public, err := webhook.ParseKey("whpk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=")
	if err != nil {
		t.Fatal(err)
	}
	_, err = webhooks.New("https://user:hunter2@example.com/{topic}", webhooks.Config{
		Keys: []webhook.Key{public}, Batch: 5, MaxInFlight: -1, Timeout: -1, Bearer: "hunter2", User: "u", Proxy: "hunter2",
		Header: http.Header{"Host": {"x"}},
	})
	brokertest.Contains(t, err, "Keys[0]: a public key", "one URL",
		"MaxInFlight: -1", "Timeout: -1ns", "the URL has a user", "proxy is not a URL", "reserved")
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a secret is shown: %v", err)
	}
	for _, url := range []string{"", "example.com", "ftp://example.com/", "https:///x", "https://{topic}.example.com/", "https://example.com{topic}", "https://example.com/{nothing}", "https://example.com/{", "https://example.com/#x", "https://exa mple.com/"} {
		if _, err := webhooks.New(url, webhooks.Config{}); err == nil {
			t.Errorf("%q is accepted", url)
		}
	}
}
