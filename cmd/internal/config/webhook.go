package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/webhook"
)

// Webhook configures a receiver of webhooks.
type Webhook struct {
	URL                URL           `json:"url" jsonschema:"Where messages are posted. Path and query may have the fields {topic}, {key}, {event_type}, {aggregate_type} and {aggregate_id}. Required."`
	URLFile            string        `json:"url_file" jsonschema:"File that holds the URL, instead of url."`
	Secret             Secret        `json:"secret" jsonschema:"Key to sign with: whsec_... shared with the receiver, or whsk_... of which it has the public half. Empty: unsigned."`
	SecretFile         string        `json:"secret_file" jsonschema:"File that holds the secret, instead of secret."`
	PreviousSecret     Secret        `json:"previous_secret" jsonschema:"Key that signs as well while receivers change to secret."`
	PreviousSecretFile string        `json:"previous_secret_file" jsonschema:"File that holds the previous secret, instead of previous_secret."`
	BearerToken        Secret        `json:"bearer_token" jsonschema:"Token to authenticate with."`
	BearerTokenFile    string        `json:"bearer_token_file" jsonschema:"File that holds the token, instead of bearer_token."`
	User               string        `json:"user" jsonschema:"User for basic authentication."`
	Password           Secret        `json:"password" jsonschema:"The user's password."`
	PasswordFile       string        `json:"password_file" jsonschema:"File that holds the password, instead of password."`
	APIKeyHeader       string        `json:"api_key_header" jsonschema:"Name of a header that carries an API key."`
	APIKey             Secret        `json:"api_key" jsonschema:"The API key."`
	APIKeyFile         string        `json:"api_key_file" jsonschema:"File that holds the API key, instead of api_key."`
	RequestMessages    int           `json:"request_messages" min:"1" max:"10000" jsonschema:"Messages in one request. Above 1 the receiver must be one of ours (package webhook)."`
	MaxInFlight        int           `json:"max_in_flight" min:"1" max:"10000" jsonschema:"Requests under way at once."`
	MaxPayload         Size          `json:"max_payload" jsonschema:"Largest payload that the receiver takes; larger ones are not sent. 0: unknown."`
	Timeout            time.Duration `json:"timeout" jsonschema:"Bound of a request as a whole."`
	MaxRetryAfter      time.Duration `json:"max_retry_after" jsonschema:"Longest pause that the receiver may ask for."`
	AllowNetworks      []string      `json:"allow_networks" jsonschema:"Networks such as 10.0.0.0/8 that may be connected to although they are not public."`
	Proxy              URL           `json:"proxy" jsonschema:"URL of a proxy for all requests. Empty: none."`
	ProxyFile          string        `json:"proxy_file" jsonschema:"File that holds the proxy's URL, instead of proxy."`
	HTTP2Cleartext     bool          `json:"http2_cleartext" jsonschema:"Whether HTTP/2 is spoken to an http:// URL."`
	TLS                TLS           `json:"tls" jsonschema:"Authorities and certificates for https:// URLs."`
}

// DefaultWebhook returns the settings of a receiver of webhooks that is only named.
func DefaultWebhook() Webhook {
	return Webhook{RequestMessages: 1, MaxInFlight: 64, Timeout: 15 * time.Second, MaxRetryAfter: 10 * time.Minute}
}

// Keys returns the keys to sign with.
func (w Webhook) Keys() ([]webhook.Key, error) {
	var texts []string
	for _, secret := range []Secret{w.Secret, w.PreviousSecret} {
		if !secret.Empty() {
			texts = append(texts, secret.Text())
		}
	}
	return webhook.ParseKeys(texts...)
}

// Networks returns those that may be connected to. A single address is a network of its own.
func (w Webhook) Networks() ([]netip.Prefix, error) {
	var networks []netip.Prefix
	for _, text := range w.AllowNetworks {
		network, err := parseNetwork(text)
		if err != nil {
			return nil, err
		}
		networks = append(networks, network)
	}
	return networks, nil
}

func parseNetwork(text string) (netip.Prefix, error) {
	if ip, err := netip.ParseAddr(text); err == nil {
		return ip.Prefix(ip.BitLen())
	}
	network, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a network such as 10.0.0.0/8 or fd00::/8", text)
	}
	return network.Masked(), nil
}

func (l *loader) webhook(w *Webhook, path string) {
	complaint := webhookURL(w.URL.Text())
	l.check(complaint == "" || l.rejected[path+".url_file"], path+".url", "%s", complaint)
	for _, secret := range []struct {
		name  string
		value Secret
	}{{"secret", w.Secret}, {"previous_secret", w.PreviousSecret}} {
		if secret.value.Empty() {
			continue
		}
		key, err := webhook.ParseKey(secret.value.Text())
		l.check(err == nil, path+"."+secret.name, "%v", err)
		l.check(err != nil || key.CanSign(), path+"."+secret.name, "is a public key (whpk_), which only verifies; name its private key (whsk_) or a shared secret (whsec_)")
	}
	l.check(w.PreviousSecret.Empty() || !w.Secret.Empty() || l.rejected[path+".secret_file"], path+".secret", "not given, but previous_secret is")
	l.advise(!w.Secret.Empty() || l.rejected[path+".secret_file"], path+".secret", "not given: requests are not signed, and receivers can't tell who sends them")
	l.check(w.BearerToken.Empty() || w.User == "", path, "bearer_token and user are given; keep one way to authenticate")
	l.check(w.Password.Empty() || w.User != "", path+".user", "not given, but a password is")
	l.check(w.APIKey.Empty() || w.APIKeyHeader != "", path+".api_key_header", "not given, but an API key is")
	l.check(w.APIKeyHeader == "" || !w.APIKey.Empty() || l.rejected[path+".api_key_file"], path+".api_key", "not given, but api_key_header is")
	if w.APIKeyHeader != "" {
		err := webhook.CheckHeader(w.APIKeyHeader, "")
		l.check(err == nil, path+".api_key_header", "%v", err)
	}
	l.check(w.MaxPayload >= 0, path+".max_payload", "%v is negative", w.MaxPayload)
	for i, text := range w.AllowNetworks {
		_, err := parseNetwork(text)
		l.check(err == nil, element(path+".allow_networks", i), "%v", err)
	}
	plain := strings.HasPrefix(w.URL.Text(), "http://")
	l.check(!plain || !w.TLS.Enabled, path+".tls.enabled", "true, but the URL begins with http://, which is without TLS")
	l.advise(!plain || len(w.AllowNetworks) > 0, path+".url", "http:// shows messages to everybody on the way; use https://")
	l.advise(plain || !w.HTTP2Cleartext, path+".http2_cleartext", "has no effect, since the URL begins with https://")
	l.tls(w.TLS, path+".tls")
}

// webhookURL checks the form of a URL. The complaint never repeats any of it.
func webhookURL(text string) string {
	if text == "" {
		return "not given; set it, or url_file"
	}
	u, err := url.Parse(templateField.ReplaceAllString(text, "x"))
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		return "not a URL such as https://example.com/hooks or https://example.com/hooks/{topic}"
	}
	return ""
}
