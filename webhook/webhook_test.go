package webhook_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/webhook"
)

// The example of the specification's reference implementations.
const (
	exampleSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	exampleID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	exampleBody      = `{"test": 2432232314}`
	exampleSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

var exampleTime = time.Unix(1614265330, 0)

func parse(t *testing.T, texts ...string) []webhook.Key {
	t.Helper()
	keys, err := webhook.ParseKeys(texts...)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestTheReferenceExampleIsSignedAndVerified(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{exampleSecret, strings.TrimPrefix(exampleSecret, "whsec_")} {
		keys := parse(t, secret)
		h := http.Header{}
		webhook.Sign(h, keys, exampleID, exampleTime, []byte(exampleBody))
		if got := h.Get("webhook-signature"); got != exampleSignature {
			t.Errorf("signature %s, want %s", got, exampleSignature)
		}
		if err := webhook.Verify(h, keys, []byte(exampleBody), exampleTime, time.Minute); err != nil {
			t.Error(err)
		}
	}
}

func TestWhatIsNotSignedByOneOfTheKeysIsNotBelieved(t *testing.T) {
	t.Parallel()
	keys := parse(t, exampleSecret)
	for name, c := range map[string]struct {
		change func(h http.Header)
		now    time.Time
		body   string
		want   error
	}{
		"intact":           {func(http.Header) {}, exampleTime, exampleBody, nil},
		"at the tolerance": {func(http.Header) {}, exampleTime.Add(5 * time.Minute), exampleBody, nil},
		"replayed":         {func(http.Header) {}, exampleTime.Add(5*time.Minute + time.Second), exampleBody, webhook.ErrExpired},
		"from the future":  {func(http.Header) {}, exampleTime.Add(-5*time.Minute - time.Second), exampleBody, webhook.ErrExpired},
		"another body":     {func(http.Header) {}, exampleTime, exampleBody + " ", webhook.ErrSignature},
		"another id":       {func(h http.Header) { h.Set("Webhook-Id", "msg_x") }, exampleTime, exampleBody, webhook.ErrSignature},
		"another time": {func(h http.Header) { h.Set("Webhook-Timestamp", "1614265331") },
			exampleTime, exampleBody, webhook.ErrSignature},
		"no id":        {func(h http.Header) { h.Del("Webhook-Id") }, exampleTime, exampleBody, webhook.ErrUnsigned},
		"no time":      {func(h http.Header) { h.Del("Webhook-Timestamp") }, exampleTime, exampleBody, webhook.ErrUnsigned},
		"no signature": {func(h http.Header) { h.Del("Webhook-Signature") }, exampleTime, exampleBody, webhook.ErrUnsigned},
		"time with a sign": {func(h http.Header) { h.Set("Webhook-Timestamp", "+1614265330") },
			exampleTime, exampleBody, webhook.ErrUnsigned},
		"time is no number": {func(h http.Header) { h.Set("Webhook-Timestamp", "now") },
			exampleTime, exampleBody, webhook.ErrUnsigned},
		"half a signature": {func(h http.Header) { h.Set("Webhook-Signature", "v1,") },
			exampleTime, exampleBody, webhook.ErrSignature},
		"an unknown version": {func(h http.Header) { h.Set("Webhook-Signature", "v2"+exampleSignature[2:]) },
			exampleTime, exampleBody, webhook.ErrSignature},
		"another algorithm": {func(h http.Header) { h.Set("Webhook-Signature", "v1a"+exampleSignature[2:]) },
			exampleTime, exampleBody, webhook.ErrSignature},
		"one among several": {func(h http.Header) { h.Set("Webhook-Signature", "v1,AAAA v2,x "+exampleSignature+" v1,BBBB") },
			exampleTime, exampleBody, nil},
		"one among a great many": {func(h http.Header) {
			h.Set("Webhook-Signature", strings.Repeat("v1,AAAA ", 100)+exampleSignature)
		}, exampleTime, exampleBody, webhook.ErrSignature},
		"parts cut elsewhere": {func(h http.Header) {
			h.Set("Webhook-Id", exampleID+".1614265330")
			h.Set("Webhook-Timestamp", "1614265330")
		}, exampleTime, exampleBody, webhook.ErrUnsigned},
	} {
		h := http.Header{}
		webhook.Sign(h, keys, exampleID, exampleTime, []byte(exampleBody))
		c.change(h)
		if err := webhook.Verify(h, keys, []byte(c.body), c.now, 5*time.Minute); err != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// With a dot in the id, what was signed for one request could be presented as another.
func TestSignedTextCantBeCutIntoOtherParts(t *testing.T) {
	t.Parallel()
	keys := parse(t, exampleSecret)
	h := http.Header{}
	webhook.Sign(h, keys, "a", exampleTime, []byte("1614265330.x"))
	h.Set("Webhook-Id", "a.1614265330")
	if err := webhook.Verify(h, keys, []byte("x"), exampleTime, time.Minute); err != webhook.ErrUnsigned {
		t.Errorf("outcome %v", err)
	}
}

func TestAPublicKeyVerifiesWhatItsPrivateKeySigned(t *testing.T) {
	t.Parallel()
	seed := bytes.Repeat([]byte{7}, ed25519.SeedSize)
	private := ed25519.NewKeyFromSeed(seed)
	public := "whpk_" + base64.StdEncoding.EncodeToString(private.Public().(ed25519.PublicKey))
	for _, text := range []string{"whsk_" + base64.StdEncoding.EncodeToString(seed), "whsk_" + base64.StdEncoding.EncodeToString(private)} {
		h := http.Header{}
		webhook.Sign(h, parse(t, text, exampleSecret), exampleID, exampleTime, []byte(exampleBody))
		if got := h.Get("Webhook-Signature"); !strings.HasPrefix(got, "v1a,") || !strings.HasSuffix(got, " "+exampleSignature) {
			t.Errorf("signatures %s", got)
		}
		for _, verifier := range []string{public, exampleSecret, text} {
			if err := webhook.Verify(h, parse(t, verifier), []byte(exampleBody), exampleTime, time.Minute); err != nil {
				t.Errorf("%.6s…: %v", verifier, err)
			}
		}
		if err := webhook.Verify(h, parse(t, public), []byte("other"), exampleTime, time.Minute); err != webhook.ErrSignature {
			t.Errorf("another body: %v", err)
		}
	}
	if parse(t, public)[0].CanSign() {
		t.Error("a public key can sign")
	}
}

func TestMalformedKeysAreReportedTogetherAndNotRepeated(t *testing.T) {
	t.Parallel()
	texts := []string{"", "whsec_hunter2", "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 23)),
		"whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 65)),
		"whpk_AAAA", "whsk_AAAA", "whsk_" + base64.StdEncoding.EncodeToString(make([]byte, 64)), "other_" +
			base64.StdEncoding.EncodeToString(make([]byte, 32))}
	_, err := webhook.ParseKeys(texts...)
	if err == nil || strings.Count(err.Error(), "\n") != len(texts)-1 {
		t.Fatalf("faults: %v", err)
	}
	if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "AAAA") {
		t.Errorf("a key is shown: %v", err)
	}
}

func full() *outbox.Message {
	return &outbox.Message{
		ID: outbox.NewID(), Topic: "orders/ü %", Key: " ключ\t", AggregateType: "order", AggregateID: "4711", EventType: "Created",
		Payload: []byte{0, 1, 255}, ContentType: "application/json", Position: 7,
		Headers:   []outbox.Header{{Name: "x-Case", Value: "Größe"}, {Name: "a", Value: ""}},
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), DeliverAt: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC),
	}
}

func TestAMessageIsReadBackFromItsHeadersAndFromABatch(t *testing.T) {
	t.Parallel()
	bare := &outbox.Message{ID: outbox.NewID(), Topic: "t"}
	empty := &outbox.Message{ID: outbox.NewID(), Topic: "t",
		Payload: []byte{}, Headers: []outbox.Header{{Name: "Content-Type", Value: "text/plain"}}}
	messages := []*outbox.Message{full(), bare, empty}
	for _, m := range messages {
		h := http.Header{"Webhook-Id": {m.ID.String()}}
		if err := webhook.SetHeaders(h, m); err != nil {
			t.Fatal(err)
		}
		got, err := webhook.ReadMessage(h, m.Payload)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("read %+v (%v), want %+v", got, err, m)
		}
	}
	var body bytes.Buffer
	if err := webhook.WriteBatch(&body, messages); err != nil {
		t.Fatal(err)
	}
	got, err := webhook.ReadBatch(body.Bytes())
	if err != nil || !reflect.DeepEqual(got, messages) {
		t.Errorf("read %+v (%v)", got, err)
	}
	if a, b := webhook.BatchID(messages), webhook.BatchID(messages[:2]); a == b || a != webhook.BatchID(got) || strings.Contains(a, ".") {
		t.Errorf("ids %s and %s", a, b)
	}
}

func TestAHeaderOfAnyTextArrivesThroughAnyServer(t *testing.T) {
	t.Parallel()
	for value, wire := range map[string]string{
		"acme": "acme", "a%20b=c": "a%20b=c", "": "", // as they are: baggage has its own escapes
		"grüße €": "gr%C3%BC%C3%9Fe %E2%82%AC", "ü 50%": "%C3%BC 50%25", " x ": "%20x%20", "a\r\nb\x00\t": "a%0D%0Ab%00%09",
	} {
		h := http.Header{}
		m := &outbox.Message{Topic: "t", Headers: []outbox.Header{{Name: "a", Value: "b"}, {Name: "note", Value: value}}}
		if err := webhook.SetHeaders(h, m); err != nil {
			t.Fatal(err)
		}
		if h.Get("Note") != wire {
			t.Errorf("%q goes as %q, want %q", value, h.Get("Note"), wire)
		}
		got, err := webhook.ReadMessage(h, nil)
		if err != nil || !reflect.DeepEqual(got.Headers, m.Headers) {
			t.Errorf("read %q (%v), want %q", got.Headers, err, m.Headers)
		}
	}
}

func TestAnIDOfAnotherProductBecomesAUUIDThatRepeatsHave(t *testing.T) {
	t.Parallel()
	read := func(id string) outbox.ID {
		m, err := webhook.ReadMessage(http.Header{"Webhook-Id": {id}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return m.ID
	}
	first, repeat := read("msg_1"), read("msg_1")
	if first != repeat || first == read("msg_2") || first.IsZero() {
		t.Error("ids don't tell messages apart")
	}
	if s := first.String(); s[14] != '8' {
		t.Errorf("%s is not of version 8", s)
	}
}

// post sends a signed request to a handler around receive.
func post(t *testing.T, receive func(context.Context, *outbox.Message) error,
	change func(*http.Request), m ...*outbox.Message) *httptest.ResponseRecorder {
	t.Helper()
	keys := parse(t, exampleSecret)
	handler, err := webhook.Handler(keys, receive, webhook.Config{MaxBody: 1000})
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{}
	body, id := m[0].Payload, m[0].ID.String()
	if len(m) == 1 {
		err = webhook.SetHeaders(h, m[0])
	} else {
		var batch bytes.Buffer
		err = webhook.WriteBatch(&batch, m)
		body, id = batch.Bytes(), webhook.BatchID(m)
		h.Set("Content-Type", webhook.BatchType)
	}
	if err != nil {
		t.Fatal(err)
	}
	webhook.Sign(h, keys, id, time.Now(), body)
	req := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
	req.Header = h
	if change != nil {
		change(req)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, req)
	return w
}

func TestTheHandlerAnswersByWhatReceiveReturns(t *testing.T) {
	t.Parallel()
	internal := errors.New("table secrets is missing")
	for _, c := range []struct {
		err           error
		status        int
		text, missing string
		retryAfter    string
	}{
		{nil, 204, "", "", ""},
		{internal, 500, "not accepted", "secrets", ""},
		{outbox.Permanent(errors.New("no such order")), 422, "no such order", "", ""},
		{outbox.Unavailable(internal), 503, "later", "secrets", ""},
		{outbox.RetryAfter(outbox.Unavailable(internal), 1500*time.Millisecond), 503, "", "secrets", "2"},
	} {
		m := full()
		var got *outbox.Message
		w := post(t, func(_ context.Context, m *outbox.Message) error { got = m; return c.err }, nil, m)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.text) ||
			c.missing != "" && strings.Contains(w.Body.String(), c.missing) || w.Header().Get("Retry-After") != c.retryAfter {
			t.Errorf("%v: %d, Retry-After %q, %s", c.err, w.Code, w.Header().Get("Retry-After"), w.Body)
		}
		if !reflect.DeepEqual(got, m) {
			t.Errorf("received %+v, want %+v", got, m)
		}
	}
}

func TestWhatIsNotBelievedNeverReachesReceive(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*http.Request)
		status int
	}{
		"another secret": {func(r *http.Request) {
			webhook.Sign(r.Header, parse(t, "whsec_"+strings.Repeat("A", 32)), "x", time.Now(), nil)
		}, 401},
		"an old request": {func(r *http.Request) {
			webhook.Sign(r.Header, parse(t, exampleSecret), "x", time.Now().Add(-time.Hour), full().Payload)
		}, 401},
		"no signature": {func(r *http.Request) { r.Header.Del("Webhook-Signature") }, 401},
		"another body": {func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("x")) }, 401},
		"a large body": {func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", 1001))) }, 413},
		"GET":          {func(r *http.Request) { r.Method = http.MethodGet }, 405},
		"a bad field":  {func(r *http.Request) { r.Header.Set("Outbox-Position", "x") }, 422},
		"a bad batch":  {func(r *http.Request) { r.Header.Set("Content-Type", webhook.BatchType) }, 422},
	} {
		w := post(t, func(context.Context, *outbox.Message) error {
			t.Errorf("%s: received", name)
			return nil
		}, c.change, full())
		if w.Code != c.status {
			t.Errorf("%s: %d, want %d", name, w.Code, c.status)
		}
	}
}

func TestAKeyOfABatchStopsAtItsFirstFailure(t *testing.T) {
	t.Parallel()
	var received []string
	message := func(key, payload string) *outbox.Message {
		return &outbox.Message{ID: outbox.NewID(), Topic: "t", Key: key, Payload: []byte(payload)}
	}
	w := post(t, func(_ context.Context, m *outbox.Message) error {
		received = append(received, string(m.Payload))
		switch string(m.Payload)[1] {
		case 'p':
			return outbox.Permanent(errors.New("never"))
		case 'x':
			return errors.New("no")
		}
		return nil
	}, nil, message("a", "1"+" "), message("a", "2x"), message("b", "3 "), message("a", "4 "), message("", "5p"), message("", "6 "))
	if got, want := strings.Join(received, " "), "1  2x 3  5p 6 "; got != want {
		t.Errorf("received %q, want %q", got, want)
	}
	results, err := webhook.ReadResults(w.Body.Bytes(), 10)
	var statuses []int
	for _, r := range results {
		statuses = append(statuses, r.Status)
	}
	if want := []int{204, 500, 204, 424, 422, 204}; err != nil || w.Code != http.StatusMultiStatus || !reflect.DeepEqual(statuses, want) {
		t.Errorf("%d with %v (%v), want %v", w.Code, statuses, err, want)
	}
	if w := post(t, func(context.Context, *outbox.Message) error { return nil },
		nil, message("a", "1"), message("a", "2")); w.Code != http.StatusNoContent {
		t.Errorf("all accepted: %d", w.Code)
	}
}

func TestAHandlerNeedsKeysAndAFunction(t *testing.T) {
	t.Parallel()
	if _, err := webhook.Handler(nil, nil, webhook.Config{Tolerance: -1}); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("faults: %v", err)
	}
	if _, err := webhook.Handler([]webhook.Key{{}}, func(context.Context, *outbox.Message) error { return nil },
		webhook.Config{}); err == nil {
		t.Error("an empty key is accepted")
	}
}

func FuzzRequestsAreReadOrRefused(f *testing.F) {
	f.Add("a b", "%zz", "12", []byte(`{"id":"0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f","topic":"t","payload":"AA=="}`))
	f.Fuzz(func(t *testing.T, topic, created, position string, body []byte) {
		h := http.Header{"Outbox-Topic": {topic}, "Outbox-Created-At": {created},
			"Outbox-Position": {position}, "Outbox-Headers": {topic, created + ";percent"}}
		if m, err := webhook.ReadMessage(h, body); err == nil && m == nil {
			t.Error("neither a message nor an error")
		}
		if batch, err := webhook.ReadBatch(body); err == nil && len(batch) == 0 {
			t.Error("neither messages nor an error")
		}
	})
}
