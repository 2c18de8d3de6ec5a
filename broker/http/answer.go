package http

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/secure"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/webhook"
)

// request is one POST.
type request struct {
	url     *url.URL
	header  http.Header // of rounds
	id      string
	body    []byte // the transport may still read it when the request is over
	results int    // the largest number of results in the answer; 0 for a single message
}

// answer is the receiver's answer.
type answer struct {
	host       string
	status     int
	retryAfter time.Duration
	location   string
	body       []byte // the part that was read
	ofMessage  bool   // it is the result of one message of a batch: the request itself was verified
}

// resend is a header that isn't sent. It tells the transport that it may repeat the request if a kept connection turns
// out to be closed. Receivers recognise a repeat by Webhook-Id.
var resend = []string{}

// post sends r. Its errors are unavailable, except a timeout that only this request has met.
func (b *Broker) post(ctx context.Context, at *rounds, r request) (answer, error) {
	now := time.Now()
	webhook.Sign(r.header, b.cfg.Keys, r.id, now, r.body)
	maps.Copy(r.header, b.cfg.Header)
	if r.header["Idempotency-Key"] == nil {
		r.header["Idempotency-Key"] = resend
	}

	began := now.Sub(b.started)
	limited := at.begin(b.cfg.Timeout)
	defer at.end()
	req := (&http.Request{Method: http.MethodPost, URL: r.url, Header: r.header, Body: http.NoBody}).WithContext(limited)
	if body := r.body; len(body) > 0 {
		req.ContentLength = int64(len(body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	resp, err := b.transport.RoundTrip(req)
	if err != nil {
		return answer{}, b.unanswered(ctx, limited, began, err)
	}
	defer resp.Body.Close()
	a := answer{host: r.url.Host, status: resp.StatusCode}
	if !gateway(a.status) {
		b.noteAnswered(began)
	}
	if !success(a.status) {
		a.location = resp.Header.Get("Location")
		a.retryAfter = min(retryAfter(resp.Header.Get("Retry-After"), time.Now()), b.cfg.MaxRetryAfter)
	}
	if resp.ContentLength == 0 && r.results == 0 {
		return a, nil
	}
	if a.body, err = readBody(resp.Body, at, r.results); err != nil && r.results > 0 && a.status == http.StatusMultiStatus {
		return answer{}, b.unanswered(ctx, limited, began, err)
	}
	return a, nil
}

// readBody reads as much of an answer's body as is needed. The status is known already. So if a body is endless, or
// comes slowly, the rest isn't read, and its connection is closed.
func readBody(body io.Reader, at *rounds, results int) ([]byte, error) {
	const excerpt, perResult = 4 << 10, 2 << 10
	if results == 0 {
		at.shorten(time.Second)
	}
	most := int64(excerpt + results*perResult)
	read, err := io.ReadAll(io.LimitReader(body, most+1))
	if int64(len(read)) > most {
		return read[:most], fmt.Errorf("the answer is longer than %d bytes", most)
	}
	return read, err
}

// noteAnswered records that a request that began at that time was answered.
func (b *Broker) noteAnswered(began time.Duration) {
	for {
		latest := b.answered.Load()
		if int64(began) <= latest || b.answered.CompareAndSwap(latest, int64(began)) {
			return
		}
	}
}

// unanswered classifies the error of a request. It means that the destination doesn't answer, except in one case: the
// request itself timed out, and a later request was answered well within that time. Then the message is at fault, and
// the attempt counts. Otherwise a message that the receiver can't handle would stall the destination forever.
func (b *Broker) unanswered(ctx, limited context.Context, began time.Duration, err error) error {
	if ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("http: no answer within %v (outcome unknown)", b.cfg.Timeout)
		if time.Duration(b.answered.Load()) > began+b.cfg.Timeout/2 {
			return fmt.Errorf("%w, while others were answered", err)
		}
		return outbox.Unavailable(err)
	}
	if ctx.Err() != nil {
		return outbox.Unavailable(fmt.Errorf("http: gave up waiting for an answer: %w (outcome unknown)", context.Cause(ctx)))
	}
	return outbox.Unavailable(connectionFault(err))
}

// connectionFault explains why a request got no answer.
func connectionFault(err error) error {
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return fmt.Errorf("http: connect: %w (not sent)", err)
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return fmt.Errorf("http: %w (not sent)", secure.Explain(err))
	}
	return fmt.Errorf("http: no answer: %w (outcome unknown)", err)
}

// judge turns an answer into an outcome; what names the content of the request.
func (b *Broker) judge(a answer, what string) error {
	if success(a.status) {
		return nil
	}
	err := fmt.Errorf("http: %s answered %d %s%s; %s", a.host, a.status, http.StatusText(a.status), excerpt(a.body), what)
	switch a.status {
	case http.StatusGone:
		return b.disable(a.host)
	case http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong, http.StatusUnsupportedMediaType,
		http.StatusUnprocessableEntity, http.StatusRequestHeaderFieldsTooLarge:
		return outbox.Permanent(err)
	case http.StatusUnauthorized:
		return outbox.Unavailable(fmt.Errorf("%w: check the secret, the credentials, and the clocks of both ends", err))
	case http.StatusProxyAuthRequired:
		return outbox.Unavailable(fmt.Errorf("%w: check the credentials in the proxy's URL", err))
	case http.StatusRequestTimeout, http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusInsufficientStorage:
		return b.pause(a, err)
	case http.StatusTooManyRequests:
		return b.pause(a, err)
	}
	switch {
	case b.ofClockOrSecret(a):
		return outbox.Unavailable(fmt.Errorf("%w: check the secret, and the clocks of both ends", err))
	case a.status >= 300 && a.status < 400:
		return outbox.Unavailable(fmt.Errorf("%w: redirects are not followed, correct the URL (it points to %q)",
			err, printed.Short(withoutQuery(a.location))))
	case gateway(a.status):
		return b.pause(a, err)
	}
	if a.status < http.StatusInternalServerError {
		err = outbox.OfMessage(err)
	}
	if a.retryAfter > 0 {
		return outbox.RetryAfter(err, a.retryAfter)
	}
	return err
}

// verification matches what the libraries of Standard Webhooks say of a request that they can't verify, if that is all
// that the receiver answers: as text, or as the error of a JSON object. Receivers that use them often answer 400.
var verification = func() *regexp.Regexp {
	const sentence = `(\w*error: )?(missing required headers|invalid signature headers|` +
		`((message|signature) )?timestamp (is )?too (old|new)|no matching signature found)\.?`
	return regexp.MustCompile(`(?i)^\s*("?` + sentence + `"?|\{[^{}\[\]]*"(error|message|detail)"\s*:\s*"` + sentence + `"[^{}\[\]]*\})\s*$`)
}()

// ofClockOrSecret reports whether a receiver could not verify a signed request: its time or its signature, which
// concern every message.
func (b *Broker) ofClockOrSecret(a answer) bool {
	return len(b.cfg.Keys) > 0 && !a.ofMessage && (a.status == http.StatusBadRequest || a.status == http.StatusForbidden) &&
		verification.Match(a.body)
}

// pause makes err unavailable, and makes every request wait as long as the receiver asked.
func (b *Broker) pause(a answer, err error) error {
	if a.retryAfter <= 0 {
		return outbox.Unavailable(err)
	}
	until := time.Now().Add(a.retryAfter)
	err = fmt.Errorf("%w; it asks for a pause until %s", err, until.UTC().Format(time.TimeOnly))
	b.throttle.set(until, err)
	return outbox.Unavailable(outbox.RetryAfter(err, a.retryAfter))
}

func success(status int) bool { return status >= 200 && status < 300 }

// gateway reports whether a status means that the receiver has not seen the message: it comes from a proxy, or from a
// server that is overloaded or has no upstream.
func gateway(status int) bool {
	return status >= http.StatusBadGateway && status <= http.StatusGatewayTimeout || status >= 520 && status <= 530
}

// results turns the answer to a batch into an outcome for each of its n messages.
func (b *Broker) results(a answer, n int) []error {
	list, err := webhook.ReadResults(a.body, n)
	if err == nil {
		err = errors.New("the answer is too short")
	}
	unknown := outbox.Unavailable(fmt.Errorf("http: %s gave no result for a message of a batch (outcome unknown): %w", a.host, err))
	outcomes := slices.Repeat([]error{unknown}, n)
	for i, r := range list {
		if r.Status == http.StatusFailedDependency {
			// The receiver knows of an earlier failure of the message's key, which need not be in this batch.
			outcomes[i] = outbox.OfMessage(fmt.Errorf("http: %s left a message for later (424)", a.host))
			continue
		}
		pause := min(webhook.Seconds(float64(r.RetryAfter)), b.cfg.MaxRetryAfter)
		result := answer{host: a.host, status: r.Status, retryAfter: pause, body: []byte(r.Error), ofMessage: true}
		outcomes[i] = b.judge(result, "a message of a batch")
	}
	return outcomes
}

// retryAfter reads Retry-After, as seconds or as a date; 0 if it is missing, invalid or in the past.
func retryAfter(text string, now time.Time) time.Duration {
	text = strings.TrimSpace(text)
	if seconds, err := strconv.ParseFloat(text, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return webhook.Seconds(seconds)
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// excerpt is the beginning of a text for an error message, on one line.
func excerpt(body []byte) string {
	text := strings.ToValidUTF8(string(body[:min(len(body), 200)]), "")
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text))
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// withoutQuery removes the query, which may be secret, for error texts.
func withoutQuery(location string) string {
	before, _, _ := strings.Cut(location, "?")
	return before
}
