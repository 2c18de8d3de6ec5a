package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
)

// Webhook posts {"text": ...}, as Slack's incoming webhooks and those that follow them want it. Its URL is a
// secret and in none of its errors.
type Webhook struct {
	url    string
	client *http.Client
}

var _ Channel = (*Webhook)(nil)

// NewWebhook returns a channel. A request as a whole takes timeout at most.
func NewWebhook(url string, timeout time.Duration) *Webhook {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, ForceAttemptHTTP2: true}
	return &Webhook{url: url, client: &http.Client{
		Timeout: timeout, Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a POST would become a GET
	}}
}

// Name implements Channel.
func (*Webhook) Name() string { return "webhook" }

// markup takes away what Slack's format would read as more than text.
var markup = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// Send implements Channel.
func (w *Webhook) Send(ctx context.Context, n *Notification) error {
	body, err := json.Marshal(struct {
		Text string `json:"text"`
	}{markup.Replace(n.Text)})
	if err != nil {
		return outbox.Permanent(fmt.Errorf("write the notification: %w", err))
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return outbox.Permanent(errors.New("the URL of the webhook is not valid"))
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := w.client.Do(request)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // without the URL
		}
		return fmt.Errorf("post the notification: %w", err)
	}
	defer response.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(response.Body, 300)) // what could be read of it is good enough
	if response.StatusCode/100 == 2 {
		return nil
	}
	err = fmt.Errorf("the receiver answers %s: %q", response.Status, said)
	switch {
	case response.StatusCode == http.StatusTooManyRequests || response.StatusCode == http.StatusServiceUnavailable:
		if seconds, notNumber := strconv.Atoi(response.Header.Get("Retry-After")); notNumber == nil && seconds > 0 {
			return outbox.RetryAfter(err, time.Duration(min(seconds, 3600))*time.Second)
		}
		return err
	case response.StatusCode >= 500, response.StatusCode == http.StatusRequestTimeout:
		return err
	}
	return outbox.Permanent(err)
}
