package http_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/relay/around"
	"github.com/pgoutbox/outbox/webhook"
)

func TestEveryStatusHasItsKind(t *testing.T) {
	t.Parallel()
	want := map[int]string{
		200: "accepted", 201: "accepted", 202: "accepted", 204: "accepted", 299: "accepted",
		300: "unavailable", 301: "unavailable", 302: "unavailable", 304: "unavailable", 307: "unavailable", 308: "unavailable",
		400: "retried", 403: "retried", 404: "retried", 405: "retried",
		406: "retried", 409: "retried", 418: "retried", 424: "retried", 499: "retried",
		401: "unavailable", 407: "unavailable", 408: "unavailable",
		410: "unavailable", 421: "unavailable", 425: "unavailable", 429: "unavailable",
		413: "refused", 414: "refused", 415: "refused", 422: "refused", 431: "refused",
		500: "retried", 501: "retried", 505: "retried",
		502: "unavailable", 503: "unavailable", 504: "unavailable",
		507: "unavailable", 520: "unavailable", 522: "unavailable", 530: "unavailable",
	}
	s := server(t, func(w http.ResponseWriter, r *http.Request) {
		var status int
		_, _ = fmt.Sscan(strings.TrimPrefix(r.URL.Path, "/"), &status)
		w.Header().Set("Location", "https://elsewhere.example/?token=secret")
		w.WriteHeader(status)
		if status != 204 && status != 304 {
			_, _ = io.WriteString(w, "because\x00 of\nthis")
		}
	})
	for status, kindOf := range want {
		b := newBroker(t, fmt.Sprintf("%s/%d", s.URL, status), webhooks.Config{})
		batch := messages(2, 1)
		var first, second error
		if errs := b.Publish(patient(t), batch); errs != nil {
			first, second = errs[0], errs[1]
		}
		if kind(first) != kindOf {
			t.Errorf("%d is %s, want %s: %v", status, kind(first), kindOf, first)
		}
		if first == nil {
			continue
		}
		if !errors.Is(second, outbox.ErrSkipped) {
			t.Errorf("%d: the next of the key was not skipped: %v", status, second)
		}
		text := first.Error()
		if !strings.Contains(text, fmt.Sprint(status)) || status != 410 &&
			status != 304 && !strings.Contains(text, "because  of this") || strings.Contains(text, "token=secret") {
			t.Errorf("%d: %v", status, first)
		}
	}
}

// A receiver that fails over every message is down; one that finds fault with several messages is not.
func TestWhatIsAboutAMessageMakesNoOutage(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		400: "retried", 403: "retried", 404: "retried", 409: "retried", 424: "retried", 410: "unavailable", 422: "refused",
		500: "unavailable", 501: "unavailable", 429: "unavailable", 503: "unavailable",
	} {
		for _, size := range []int{1, 100} {
			s := server(t, func(w http.ResponseWriter, _ *http.Request) {
				if size == 1 {
					w.WriteHeader(status)
					return
				}
				w.WriteHeader(http.StatusMultiStatus)
				fmt.Fprintf(w, `{"status":%d}`+"\n", status)
			})
			b := around.Breaker(newBroker(t, s.URL, webhooks.Config{Batch: size}), 5)
			for i := range 7 {
				errs := b.Publish(patient(t), messages(1, 1))
				if got := kind(errs[0]); got != want && (i >= 4 || status < 500) {
					t.Errorf("message %d that gets %d is %s, want %s: %v", i, status, got, want, errs[0])
				}
			}
		}
	}
}

// Receivers that can't verify a request answer 400 as well: their words tell it from a fault of the message, if they
// are all that is said, and if the request was signed.
func TestAReceiverThatCanNotVerifyIsAnOutage(t *testing.T) {
	t.Parallel()
	answered := func(words string, cfg webhooks.Config) error {
		s := server(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, words, http.StatusBadRequest) })
		return newBroker(t, s.URL, cfg).Publish(patient(t), messages(1, 1))[0]
	}
	for words, want := range map[string]string{
		"Message timestamp too old": "unavailable", "Message timestamp too new": "unavailable",
		"No matching signature found": "unavailable", "no matching signature found": "unavailable",
		"WebhookVerificationError: Missing required headers":         "unavailable",
		`{"error":"Invalid Signature Headers"}`:                      "unavailable",
		`{"status": 400, "message": "No matching signature found."}`: "unavailable",

		"amount is missing": "retried", "no matching signature for contract 7": "retried",
		"Missing required headers: X-Tenant":                     "retried",
		`{"error":"the event's timestamp is too old"}`:           "retried",
		`{"contract":{"error":"No matching signature found"}}`:   "retried",
		"order 7: No matching signature found\nask the customer": "retried",
	} {
		err := answered(words, webhooks.Config{Keys: keys()})
		if kind(err) != want || want == "unavailable" && !strings.Contains(err.Error(), "clocks") {
			t.Errorf("%s: %v, want %s", words, err, want)
		}
		if err := answered(words, webhooks.Config{Keys: []webhook.Key{}}); kind(err) != "retried" {
			t.Errorf("%s, to a request that has no signature: %v", words, err)
		}
	}
}

func TestAResultInABatchIsAboutItsMessageWhateverItSays(t *testing.T) {
	t.Parallel()
	s := server(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusMultiStatus)
		fmt.Fprintln(w, `{"status":400,"error":"no matching signature for contract 7"}`)
		fmt.Fprintln(w, `{"status":400,"error":"No matching signature found"}`)
	})
	for _, err := range newBroker(t, s.URL, webhooks.Config{Batch: 2, Keys: keys()}).Publish(patient(t), messages(2, 2)) {
		if kind(err) != "retried" {
			t.Errorf("outcome %v", err)
		}
	}
}

func TestThePausesOfABatchMayBeAnyNumber(t *testing.T) {
	t.Parallel()
	pauses := []string{"1e30", "99999999999999999999", "-7", "2.5", `"soon"`, "null", "0"}
	s := server(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusMultiStatus)
		for _, pause := range pauses {
			fmt.Fprintf(w, `{"status":500,"retry_after":%s}`+"\n", pause)
		}
	})
	errs := newBroker(t, s.URL, webhooks.Config{Batch: 100}).Publish(patient(t), messages(len(pauses), len(pauses)))
	want := []time.Duration{10 * time.Minute, 10 * time.Minute, 0, 3 * time.Second, 0, 0, 0}
	for i, err := range errs {
		if kind(err) != "retried" || outbox.RetryDelay(err) != want[i] {
			t.Errorf("%s: %v, pause %v, want %v", pauses[i], err, outbox.RetryDelay(err), want[i])
		}
	}
}

func TestA410DisablesTheDestinationUntilARestart(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	s := server(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusGone)
	})
	b := newBroker(t, s.URL, webhooks.Config{})
	for range 3 {
		errs := b.Publish(patient(t), messages(1, 1))
		if len(errs) != 1 || kind(errs[0]) != "unavailable" || !strings.Contains(errs[0].Error(), "disabled; restart the relay") {
			t.Fatalf("outcome %v", errs)
		}
	}
	if err := b.Ping(patient(t)); err == nil || !strings.Contains(err.Error(), "disabled") {
		t.Errorf("ping: %v", err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the receiver was asked %d times", n)
	}
	again := newBroker(t, s.URL, webhooks.Config{})
	again.Publish(patient(t), messages(1, 1))
	if n := asked.Load(); n != 2 {
		t.Errorf("after a restart the receiver was asked %d times in all", n)
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		header      string
		least, most time.Duration
	}{
		{"120", 119 * time.Second, 120 * time.Second},
		{" 7 ", 6 * time.Second, 7 * time.Second},
		{time.Now().Add(2 * time.Minute).UTC().Format(http.TimeFormat), time.Minute, 2 * time.Minute},
		{"86400", 9 * time.Minute, 10 * time.Minute}, // bounded
		{"99999999999999999999", 9 * time.Minute, 10 * time.Minute},
		{"2147483648", 9 * time.Minute, 10 * time.Minute},
		{"1" + strings.Repeat("0", 400), 9 * time.Minute, 10 * time.Minute},
		{"1.5", time.Second, 1500 * time.Millisecond},
		{time.Now().Add(time.Minute).UTC().Format(time.RFC850), 30 * time.Second, time.Minute},
		{time.Now().Add(-time.Minute).UTC().Format(http.TimeFormat), 0, 0},
		{"-5", 0, 0},
		{"-99999999999999999999", 0, 0},
		{"NaN", 0, 0},
		{"soon", 0, 0},
		{"", 0, 0},
	} {
		var asked atomic.Int64
		s := server(t, func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			w.Header().Set("Retry-After", c.header)
			w.WriteHeader(http.StatusTooManyRequests)
		})
		b := newBroker(t, s.URL, webhooks.Config{})
		for range 2 {
			errs := b.Publish(patient(t), messages(1, 1))
			if len(errs) != 1 || kind(errs[0]) != "unavailable" {
				t.Fatalf("%q: outcome %v", c.header, errs)
			}
			if d := outbox.RetryDelay(errs[0]); d < c.least || d > c.most {
				t.Errorf("%q asks for %v, want %v to %v", c.header, d, c.least, c.most)
			}
		}
		if n := asked.Load(); c.least > 0 && n != 1 || c.least == 0 && n != 2 {
			t.Errorf("%q: the receiver was asked %d times", c.header, n)
		}
		if err := b.Ping(patient(t)); c.least > 0 && err == nil {
			t.Errorf("%q: ping finds a receiver that wants a pause", c.header)
		}
	}
}

func TestAfterAPauseTheReceiverIsAskedAgain(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	s := server(t, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	b := newBroker(t, s.URL, webhooks.Config{MaxRetryAfter: 50 * time.Millisecond})
	brokertest.Deliver(patient(t), t, b, messages(3, 1))
	if n := asked.Load(); n != 4 {
		t.Errorf("the receiver was asked %d times", n)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int64
	other := server(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := server(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, status) })
		errs := newBroker(t, s.URL, webhooks.Config{}).Publish(patient(t), messages(1, 1))
		if len(errs) != 1 || kind(errs[0]) != "unavailable" || !strings.Contains(errs[0].Error(), "redirects are not followed") {
			t.Errorf("%d: outcome %v", status, errs)
		}
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("%d requests followed", n)
	}
}
