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
	"github.com/pgoutbox/outbox/webhook"
)

// Config configures a Broker. The zero value is ready to use, and sends unsigned.
type Config struct {
	// Keys sign each request, every one of them: a secret that is being replaced and its successor. They
	// must be able to sign. None: requests have no signature.
	Keys []webhook.Key

	// Format makes body, content type and headers of a request. nil sends payloads as they are, with the
	// headers that package webhook describes. With a format the headers are those of the format, and the
	// signature. It excludes batches.
	Format format.Format

	// Batch is how many messages one request may carry. Above 1 the receiver must understand batches, as
	// webhook.Handler does, and the URL can't have fields. Default 1.
	Batch int

	// BatchBytes is the size of the payloads at which a batch is closed. Default 1 MiB.
	BatchBytes int

	// MaxInFlight bounds the requests under way at once, of all calls together. Default 64.
	MaxInFlight int

	// MaxPayload is the largest payload that the receiver takes, in bytes; larger ones are refused without
	// being sent. Default 0: unknown, the receiver refuses with 413.
	MaxPayload int

	// Timeout bounds a request as a whole: connecting, sending, the answer and its body. Beyond it the
	// outcome is unknown. Default 15 s.
	Timeout time.Duration

	// ConnectTimeout bounds connecting to one address. Default 5 s.
	ConnectTimeout time.Duration

	// MaxRetryAfter bounds the pause that a receiver may ask for with Retry-After. Default 10 min.
	MaxRetryAfter time.Duration

	// Bearer is sent as a bearer token; User and Password as basic authentication, for which they may
	// stand in the URL instead. At most one of the two ways.
	Bearer         string
	User, Password string

	// Header holds further headers of every request, such as an API key. They win over those of messages.
	Header http.Header

	// AllowNetworks are networks that may be connected to although they are not public: loopback, private,
	// link-local, shared and other special addresses are refused when a connection is made.
	AllowNetworks []netip.Prefix

	// Proxy is the URL of a proxy for all requests. It resolves the receiver's name itself, and so must keep
	// requests out of networks that they have no business in. "": none; the environment is not consulted.
	Proxy string

	// TLS configures TLS, for example with a client certificate. nil means the system's certificate
	// authorities. Versions before 1.2 are refused unless it names one.
	TLS *tls.Config

	// UnencryptedHTTP2 speaks HTTP/2 to receivers without TLS, which must support it. With TLS the best
	// that both know is used in any case.
	UnencryptedHTTP2 bool

	// Resolver looks names up. Default: the system's.
	Resolver *net.Resolver

	// Logger tells when a receiver disables the destination. nil is silent.
	Logger *slog.Logger

	records format.Encoder // of Format, nil without one
}

const (
	defaultBatchBytes  = 1 << 20
	defaultInFlight    = 64
	defaultTimeout     = 15 * time.Second
	defaultConnect     = 5 * time.Second
	defaultRetryAfter  = 10 * time.Minute
	maxResponseHeaders = 64 << 10
)

// withDefaults returns cfg completed, with all faults reported together.
func (cfg Config) withDefaults(address string) (Config, *target, *url.URL, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	to, err := parseTarget(address)
	if err != nil {
		faults = append(faults, err)
	}
	for _, n := range []struct {
		name     string
		value    *int
		standard int
	}{
		{"batch", &cfg.Batch, 1}, {"batch bytes", &cfg.BatchBytes, defaultBatchBytes},
		{"requests in flight", &cfg.MaxInFlight, defaultInFlight}, {"maximum payload", &cfg.MaxPayload, 0},
	} {
		if *n.value < 0 {
			fault("%s can't be negative, it is %d", n.name, *n.value)
		}
		if *n.value == 0 {
			*n.value = n.standard
		}
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
	}{
		{"timeout", &cfg.Timeout, defaultTimeout}, {"connect timeout", &cfg.ConnectTimeout, defaultConnect},
		{"maximum of Retry-After", &cfg.MaxRetryAfter, defaultRetryAfter},
	} {
		if *d.value < 0 {
			fault("%s can't be negative, it is %v", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	if cfg.Format != nil {
		if cfg.records, err = cfg.Format.Bind(format.HTTP); err != nil {
			faults = append(faults, err)
		}
		if cfg.Batch > 1 {
			fault("a batch has a layout of its own: leave the format out, or send messages one by one")
		}
	}
	for i, key := range cfg.Keys {
		if !key.CanSign() {
			fault("key %d can't sign: a public key (whpk_) is for receivers, use its private key (whsk_) or a secret (whsec_)", i+1)
		}
	}
	if to != nil {
		if cfg.Batch > 1 && to.fields() {
			fault("a batch has one URL: leave the fields out of it, or send messages one by one")
		}
		if to.user != nil && (cfg.User != "" || cfg.Bearer != "") {
			fault("the URL has a user: leave it out, or leave out user and bearer token")
		}
		if to.user != nil {
			cfg.User = to.user.Username()
			cfg.Password, _ = to.user.Password()
		}
		if ip, err := netip.ParseAddr(to.hostname); err == nil {
			if err := (guard{cfg.AllowNetworks}).check(ip); err != nil && cfg.Proxy == "" {
				faults = append(faults, err)
			}
		}
	}
	if cfg.Bearer != "" && cfg.User != "" {
		fault("choose one of bearer token and user")
	}
	if cfg.Password != "" && cfg.User == "" {
		fault("a password needs a user")
	}
	if cfg.Header, err = cfg.fixedHeader(); err != nil {
		faults = append(faults, err)
	}
	proxy, err := parseProxy(cfg.Proxy)
	if err != nil {
		faults = append(faults, err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg, to, proxy, errors.Join(faults...)
}

// fixedHeader returns what every request has.
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

// parseProxy doesn't repeat the URL in errors: it may hold a password.
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
