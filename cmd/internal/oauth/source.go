// Package oauth fetches access tokens with a client's credentials (RFC 6749, section 4.4) and keeps them until shortly
// before they expire.
package oauth

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/settings"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// Config says where tokens come from.
type Config struct {
	// TokenURL, ClientID and ClientSecret are required. The secret goes into the Authorization header; a server that
	// doesn't take it there gets it in the body.
	TokenURL     string
	ClientID     string
	ClientSecret string

	// Scopes are asked for. None leaves it to the server.
	Scopes []string

	// Parameters are sent as well, such as the audience that some servers want.
	Parameters map[string]string

	// TLS is used for https URLs. nil: the authorities of the system.
	TLS *tls.Config

	// Timeout bounds a request as a whole. Default: 5 s.
	Timeout time.Duration

	// Logger gets what a caller doesn't see. nil: slog.Default.
	Logger *slog.Logger
}

const (
	defaultTimeout = 5 * time.Second

	// pause is how long a server that gave no token isn't asked again, however many connections want one.
	pause = time.Second

	// unlimited is how long a token is kept of which the server doesn't say when it expires.
	unlimited = time.Minute

	// leastMargin and mostMargin bound the fifth of a token's life that is left when it is renewed. A session with
	// Kafka is no longer than its token, the client library renews it a second before its end, and Kafka refuses to do
	// that (ILLEGAL_SASL_STATE) within a second of the last time: so a session must have more than 2 s.
	leastMargin = 3 * time.Second
	mostMargin  = 5 * time.Minute
)

// Source is a source of tokens. It may be used by several goroutines, and holds nothing that must be closed.
type Source struct {
	cfg    Config
	grant  *clientcredentials.Config
	client *http.Client
	now    func() time.Time

	asking chan struct{} // capacity 1: held while the server is asked

	mu    sync.Mutex
	known answer
}

// answer is what the server has said last.
type answer struct {
	token   string
	renew   time.Time // from when on a new token is fetched
	expires time.Time // until when this one may be used if there is no new one
	err     error     // why there is no new one
	until   time.Time // until when err is not looked into again
}

// Defaults returns the Config that the zero value stands for.
func Defaults() Config {
	cfg, _ := Config{}.withDefaults() // without what is required
	return cfg
}

// withDefaults returns cfg completed, with all faults reported together. Errors do not repeat the URL, which may have a
// secret in it.
func (cfg Config) withDefaults() (Config, error) {
	var faults settings.Faults
	u, err := url.Parse(cfg.TokenURL)
	good := err == nil && u.Hostname() != "" && u.User == nil && (u.Scheme == "https" || u.Scheme == "http")
	faults.Need(good, "TokenURL", "not a URL such as https://login.example.com/oauth2/token, without user and password")
	faults.Need(!good || u.Scheme == "https" || cfg.TLS == nil, "TLS", "given, but the token URL begins with http://, which is without TLS")
	faults.Need(cfg.ClientID != "", "ClientID", "not given")
	faults.Need(cfg.ClientSecret != "", "ClientSecret", "not given")
	for i, scope := range cfg.Scopes {
		faults.Need(scope != "" && !strings.ContainsAny(scope, " \t\r\n\"\\"), fmt.Sprintf("Scopes[%d]", i),
			"%q is not one scope; write each as an element of its own", scope)
	}
	settings.Positive(&faults, "Timeout", &cfg.Timeout, defaultTimeout)
	cfg.Logger = settings.Logger(cfg.Logger)
	return cfg, faults.Err()
}

// New makes a Source. It connects to nothing. The error has all faults together.
func New(cfg Config) (*Source, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("oauth: %w", err)
	}
	parameters := url.Values{}
	for name, value := range cfg.Parameters {
		parameters.Set(name, value)
	}
	return &Source{
		cfg: cfg,
		grant: &clientcredentials.Config{ClientID: cfg.ClientID, ClientSecret: cfg.ClientSecret, TokenURL: cfg.TokenURL,
			Scopes: cfg.Scopes, EndpointParams: parameters},
		client: &http.Client{
			Transport: &http.Transport{
				Proxy:             http.ProxyFromEnvironment,
				TLSClientConfig:   cfg.TLS,
				DisableKeepAlives: true, // requests are rare
				ForceAttemptHTTP2: true,
			},
			// Following would take the secret to the server that is named there.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Timeout:       cfg.Timeout,
		},
		now:    time.Now,
		asking: make(chan struct{}, 1),
	}, nil
}

// Token returns a token that is good for a while: a fifth of its life, but 3 s at least and 5 minutes at most, before
// it expires, a new one is fetched. If that fails, the old one is used until it expires. Every error is an unavailable
// one, since it says nothing about a message, and stays for a second.
func (s *Source) Token(ctx context.Context) (string, error) {
	if token, err, ok := s.remembered(); ok {
		return token, err
	}
	select {
	case s.asking <- struct{}{}:
		defer func() { <-s.asking }()
	case <-ctx.Done():
		return "", outbox.Unavailable(fmt.Errorf("oauth: the token server was not asked: %w", context.Cause(ctx)))
	}
	if token, err, ok := s.remembered(); ok { // somebody else has asked meanwhile
		return token, err
	}
	token, err := s.grant.Token(context.WithValue(ctx, oauth2.HTTPClient, s.client))
	if err != nil && ctx.Err() != nil {
		// The caller has given up, which is no fault of the server.
		return "", outbox.Unavailable(fmt.Errorf("oauth: gave up waiting for a token: %w", context.Cause(ctx)))
	}
	return s.remember(token, err)
}

// remembered returns what is known; false means that the server is to be asked.
func (s *Source) remembered() (string, error, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	usable := s.known.token != "" && now.Before(s.known.expires)
	switch {
	case usable && now.Before(s.known.renew):
		return s.known.token, nil, true
	case s.known.err == nil || !now.Before(s.known.until):
		return "", nil, false
	case usable:
		return s.known.token, nil, true
	}
	return "", s.known.err, true
}

func (s *Source) remember(token *oauth2.Token, err error) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if err != nil {
		s.known.err, s.known.until = outbox.Unavailable(s.fault(err)), now.Add(pause)
		if s.known.token != "" && now.Before(s.known.expires) {
			s.cfg.Logger.Warn("no new token; the old one is used until it expires", "expires", s.known.expires, "cause", s.known.err)
			return s.known.token, nil
		}
		return "", s.known.err
	}
	s.known = answer{token: token.AccessToken, renew: now.Add(unlimited), expires: now.Add(unlimited)}
	if !token.Expiry.IsZero() {
		life := token.Expiry.Sub(now)
		s.known.expires = token.Expiry
		margin := max(life/5, min(leastMargin, life/2))
		s.known.renew = token.Expiry.Add(-min(margin, mostMargin))
	}
	return s.known.token, nil
}
