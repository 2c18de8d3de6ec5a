package http

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/webhook"
)

// Config configures a Broker. The zero value is ready to use, and sends unsigned.
type Config struct {
	// Keys sign each request; every key adds a signature, for instance a secret that is being replaced and its
	// successor. They must be able to sign. None: requests have no signature.
	Keys []webhook.Key

	// Format makes body, content type and headers of a request. nil sends payloads unchanged, with the headers of
	// package webhook. With a format, the headers are those of the format, and the signature. It excludes batches.
	Format format.Format

	// Batch is how many messages one request may carry. Above 1 the receiver must understand batches, as
	// webhook.Handler does, and the URL can't have fields. Default 1.
	Batch int

	// BatchBytes is the size of the payloads at which a batch is closed. Default 1 MiB.
	BatchBytes int

	// MaxInFlight bounds the requests under way at once, of all calls together. Default 64.
	MaxInFlight int

	// MaxPayload is the largest payload that the receiver accepts, in bytes; larger ones are refused without being
	// sent. Default 0: unknown; the receiver refuses with 413.
	MaxPayload int

	// Timeout bounds a request as a whole: connecting, sending, the answer and its body. Beyond it the
	// outcome is unknown. Default 15 s.
	Timeout time.Duration

	// ConnectTimeout bounds connecting to one address. Default 5 s.
	ConnectTimeout time.Duration

	// MaxRetryAfter bounds the pause that a receiver may ask for with Retry-After. Default 10 min.
	MaxRetryAfter time.Duration

	// Bearer is sent as a bearer token. User and Password are sent as basic authentication; the URL may have them
	// instead. Only one of the two ways may be used.
	Bearer         string
	User, Password string

	// Header has further headers of every request, such as an API key. They override those of messages.
	Header http.Header

	// AllowNetworks are non-public networks that connections may be made to. All others that are loopback, private,
	// link-local, shared or special are refused when a connection is made.
	AllowNetworks []netip.Prefix

	// Proxy is the URL of a proxy for all requests. The proxy resolves the receiver's name, so it must itself refuse
	// networks that requests must not reach. "": none; the environment is not consulted.
	Proxy string

	// TLS configures TLS, for example with a client certificate. nil means the system's certificate
	// authorities. Versions before 1.2 are refused unless it names one.
	TLS *tls.Config

	// UnencryptedHTTP2 uses HTTP/2 with receivers without TLS, which must support it. With TLS, the best version that
	// both support is always used.
	UnencryptedHTTP2 bool

	// Resolver looks names up. Default: the system's.
	Resolver *net.Resolver

	// Logger reports that a receiver disables the destination. nil: slog.Default.
	Logger *slog.Logger

	records format.Encoder // the encoder of Format; nil without one
}

const (
	defaultBatchBytes  = 1 << 20
	defaultInFlight    = 64
	defaultTimeout     = 15 * time.Second
	defaultConnect     = 5 * time.Second
	defaultRetryAfter  = 10 * time.Minute
	maxResponseHeaders = 64 << 10
)

// Defaults returns the Config that the zero value stands for.
func Defaults() Config {
	cfg, _, _, _ := Config{}.withDefaults("") // without the required fields
	return cfg
}

// withDefaults returns cfg completed, and reports all faults together.
func (cfg Config) withDefaults(address string) (Config, *endpoint, *url.URL, error) {
	var faults settings.Faults
	to, err := parseEndpoint(address)
	faults.Add("URL", err)
	settings.Positive(&faults, "Batch", &cfg.Batch, 1)
	settings.Positive(&faults, "BatchBytes", &cfg.BatchBytes, defaultBatchBytes)
	settings.Positive(&faults, "MaxInFlight", &cfg.MaxInFlight, defaultInFlight)
	faults.Need(cfg.MaxPayload >= 0, "MaxPayload", "%d is negative", cfg.MaxPayload)
	settings.Positive(&faults, "Timeout", &cfg.Timeout, defaultTimeout)
	settings.Positive(&faults, "ConnectTimeout", &cfg.ConnectTimeout, defaultConnect)
	settings.Positive(&faults, "MaxRetryAfter", &cfg.MaxRetryAfter, defaultRetryAfter)
	if cfg.Format != nil {
		cfg.records, err = cfg.Format.Bind(format.HTTP)
		faults.Add("Format", err)
		faults.Need(cfg.Batch <= 1, "Batch", "a batch has a layout of its own: leave the format out, or send messages one by one")
	}
	for i, key := range cfg.Keys {
		faults.Need(key.CanSign(), fmt.Sprintf("Keys[%d]", i),
			"a public key (whpk_) only verifies, and is for receivers: use its private key (whsk_) or a shared secret (whsec_)")
	}
	if to != nil {
		faults.Need(cfg.Batch <= 1 || !to.fields(), "Batch", "a batch has one URL: leave the fields out of it, or send messages one by one")
		faults.Need(to.user == nil || cfg.User == "" &&
			cfg.Bearer == "", "URL", "the URL has a user: leave it out, or leave out user and bearer token")
		faults.Need(cfg.TLS == nil || to.origin.Scheme == "https", "TLS", "given, but the URL begins with http://, which is without TLS")
		if to.user != nil {
			cfg.User = to.user.Username()
			cfg.Password, _ = to.user.Password()
		}
		if ip, err := netip.ParseAddr(to.hostname); err == nil && cfg.Proxy == "" {
			faults.Add("URL", guard{cfg.AllowNetworks}.check(ip))
		}
	}
	faults.Need(cfg.Bearer == "" || cfg.User == "", "User", "given, and a bearer token too; keep one way to authenticate")
	faults.Need(cfg.Password == "" || cfg.User != "", "User", "not given, but a password is")
	cfg.Header, err = cfg.fixedHeader()
	faults.Add("Header", err)
	proxy, err := parseProxy(cfg.Proxy)
	faults.Add("Proxy", err)
	cfg.Logger = settings.Logger(cfg.Logger)
	return cfg, to, proxy, faults.Err()
}

// fixedHeader returns the headers of every request.
func (cfg *Config) fixedHeader() (http.Header, error) {
	h := http.Header{"User-Agent": {"pgoutbox"}}
	for _, name := range slices.Sorted(maps.Keys(cfg.Header)) {
		if err := webhook.CheckHeader(name, cfg.Header.Get(name)); err != nil {
			return nil, err
		}
		h.Set(name, cfg.Header.Get(name))
	}
	switch {
	case cfg.Bearer != "":
		h.Set("Authorization", "Bearer "+cfg.Bearer)
	case cfg.User != "":
		h.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(cfg.User+":"+cfg.Password)))
	}
	return h, nil
}

// parseProxy doesn't repeat the URL in errors, because it may contain a password.
func parseProxy(text string) (*url.URL, error) {
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || !slices.Contains([]string{"http", "https", "socks5", "socks5h"}, u.Scheme) {
		return nil, errors.New("the proxy is not a URL such as http://proxy.internal:3128; the schemes are http, https and socks5")
	}
	return u, nil
}

func (cfg *Config) tooLarge(m *outbox.Message) error {
	if most := cfg.MaxPayload; most > 0 && len(m.Payload) > most {
		return outbox.Permanent(fmt.Errorf("http: the payload has %d bytes, and the receiver takes %d at most", len(m.Payload), most))
	}
	return nil
}
