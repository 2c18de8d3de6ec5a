package brokers

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/config/transport"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/webhook"
)

// Webhook configures a receiver of webhooks.
type Webhook struct {
	URL                scalar.URL    `json:"url" jsonschema:"Where messages are posted. Path and query may have the fields {topic}, {key}, {event_type}, {aggregate_type} and {aggregate_id}. Required."`
	URLFile            string        `json:"url_file" jsonschema:"File that holds the URL, instead of url."`
	Secret             scalar.Secret `json:"secret" field:"Keys[0]" jsonschema:"Key to sign with: whsec_... shared with the receiver, or whsk_... of which it has the public half. Empty: unsigned."`
	SecretFile         string        `json:"secret_file" jsonschema:"File that holds the secret, instead of secret."`
	PreviousSecret     scalar.Secret `json:"previous_secret" field:"Keys[1]" jsonschema:"Key that signs as well while receivers change to secret."`
	PreviousSecretFile string        `json:"previous_secret_file" jsonschema:"File that holds the previous secret, instead of previous_secret."`
	Bearer             scalar.Secret `json:"bearer_token" jsonschema:"Token to authenticate with."`
	BearerTokenFile    string        `json:"bearer_token_file" jsonschema:"File that holds the token, instead of bearer_token."`
	User               string        `json:"user" jsonschema:"User for basic authentication."`
	Password           scalar.Secret `json:"password" jsonschema:"The user's password."`
	PasswordFile       string        `json:"password_file" jsonschema:"File that holds the password, instead of password."`
	APIKeyHeader       string        `json:"api_key_header" field:"Header" jsonschema:"Name of a header that carries an API key."`
	APIKey             scalar.Secret `json:"api_key" jsonschema:"The API key."`
	APIKeyFile         string        `json:"api_key_file" jsonschema:"File that holds the API key, instead of api_key."`
	Batch              int           `json:"request_messages" min:"1" max:"10000" jsonschema:"Messages in one request. Above 1 the receiver must be one of ours (package webhook)."`
	MaxInFlight        int           `json:"max_in_flight" min:"1" max:"10000" jsonschema:"Requests under way at once."`
	MaxPayload         scalar.Size   `json:"max_payload" jsonschema:"Largest payload that the receiver takes; larger ones are not sent. 0: unknown."`
	Timeout            time.Duration `json:"timeout" jsonschema:"Bound of a request as a whole."`
	MaxRetryAfter      time.Duration `json:"max_retry_after" jsonschema:"Longest pause that the receiver may ask for."`
	AllowNetworks      []string      `json:"allow_networks" jsonschema:"Networks such as 10.0.0.0/8 that may be connected to although they are not public."`
	Proxy              scalar.URL    `json:"proxy" jsonschema:"URL of a proxy for all requests. Empty: none."`
	ProxyFile          string        `json:"proxy_file" jsonschema:"File that holds the proxy's URL, instead of proxy."`
	UnencryptedHTTP2   bool          `json:"http2_cleartext" jsonschema:"Whether HTTP/2 is spoken to an http:// URL."`
	TLS                transport.TLS `json:"tls" jsonschema:"Authorities and certificates for https:// URLs."`
}

// SetDefaults gives the defaults of the adapter.
func (w *Webhook) SetDefaults() { fields.Adopt(w, webhooks.Defaults()) }

func (w *Webhook) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	var cfg webhooks.Config
	o.configure(&cfg, *w, w.TLS, &faults)
	faults.Need(w.PreviousSecret.Empty() || !w.Secret.Empty(), "Keys[0]", "not given, but previous_secret is")
	for i, secret := range []scalar.Secret{w.Secret, w.PreviousSecret} {
		if secret.Empty() {
			continue
		}
		key, err := webhook.ParseKey(secret.Text())
		faults.Add(fmt.Sprintf("Keys[%d]", i), err)
		if err == nil {
			cfg.Keys = append(cfg.Keys, key)
		}
	}
	for i, text := range w.AllowNetworks {
		network, err := parseNetwork(text)
		faults.Add(fmt.Sprintf("AllowNetworks[%d]", i), err)
		cfg.AllowNetworks = append(cfg.AllowNetworks, network)
	}
	faults.Need(w.APIKey.Empty() || w.APIKeyHeader != "", "Header", "not given, but an API key is")
	faults.Need(w.APIKeyHeader == "" || !w.APIKey.Empty(), "APIKey", "not given, but api_key_header is")
	if w.APIKeyHeader != "" {
		cfg.Header = http.Header{w.APIKeyHeader: {w.APIKey.Text()}}
	}
	broker, err := webhooks.New(w.URL.Text(), cfg)
	return withFaults(broker, err, &faults)
}

// parseNetwork takes a single address for a network of its own.
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

// Advise warns about settings that have no effect or show what should be hidden.
func (w *Webhook) Advise(r *findings.Report, path string) {
	plain := strings.HasPrefix(w.URL.Text(), "http://")
	r.Advise(!w.Secret.Empty() || r.Faulty(path+".secret"), path+".secret",
		"not given: requests are not signed, and receivers can't tell who sends them")
	r.Advise(!plain || len(w.AllowNetworks) > 0, path+".url", "http:// shows messages to everybody on the way; use https://")
	r.Advise(plain || !w.UnencryptedHTTP2, path+".http2_cleartext", "has no effect, since the URL begins with https://")
}
