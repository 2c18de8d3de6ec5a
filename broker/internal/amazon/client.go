package amazon

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Client says how to reach a service.
type Client struct {
	Region   string
	Endpoint string // "" for Amazon's of the region
	AWS      *aws.Config
	TLS      *tls.Config
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
	Requests int // connections that are kept
}

const (
	defaultRequests = 16
	maxRequests     = 1000

	dialTimeout = 5 * time.Second

	// idle is shorter than Amazon keeps a connection: a request on one that was just closed at the other
	// end would fail with an unknown outcome.
	idle = 15 * time.Second
)

// DefaultTimeout is how long a request waits for its answer unless it is told otherwise.
const DefaultTimeout = 10 * time.Second

// Sending says how messages become requests, and those are sent.
type Sending struct {
	Payload  string
	Format   format.Format
	Requests int // under way at a time
	Timeout  time.Duration
	Logger   *slog.Logger

	Records format.Encoder // of Format, nil without one
}

// Complete returns s with what isn't given, for that protocol, and all faults of what is.
func (s Sending) Complete(to format.Binding) (Sending, []error) {
	var faults []error
	payload, err := Payload(s.Payload).Check()
	if err != nil {
		faults = append(faults, err)
	}
	s.Payload = string(payload)
	if s.Format != nil {
		if s.Records, err = s.Format.Bind(to); err != nil {
			faults = append(faults, err)
		}
	}
	s.Requests = cmp.Or(s.Requests, defaultRequests)
	if s.Requests < 1 || s.Requests > maxRequests {
		faults = append(faults, fmt.Errorf("requests must be 1 to %d, not %d", maxRequests, s.Requests))
	}
	s.Timeout = cmp.Or(s.Timeout, DefaultTimeout)
	if s.Timeout < 0 {
		faults = append(faults, fmt.Errorf("timeout must be positive, not %v", s.Timeout))
	}
	s.Logger = settings.Logger(s.Logger)
	return s, faults
}

// Open returns a configuration without retries, and what to close in the end. It connects to nothing.
func (c Client) Open() (aws.Config, *http.Transport, []error) {
	var faults []error
	if c.Endpoint != "" {
		if u, err := url.Parse(c.Endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			faults = append(faults, fmt.Errorf("endpoint %q is not a URL such as https://host:443", c.Endpoint))
		}
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           c.Dial,
		TLSClientConfig:       c.TLS,
		TLSHandshakeTimeout:   dialTimeout,
		MaxIdleConnsPerHost:   c.Requests,
		IdleConnTimeout:       idle,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
	}
	var cfg aws.Config
	if c.AWS != nil {
		cfg = c.AWS.Copy()
	} else {
		var err error
		if cfg, err = config.LoadDefaultConfig(context.Background()); err != nil {
			faults = append(faults, fmt.Errorf("read the configuration of the AWS SDK: %w", err))
		}
	}
	if c.Region != "" {
		cfg.Region = c.Region
	}
	if cfg.Region == "" {
		faults = append(faults, errors.New("no region: set one, such as eu-central-1, or the environment variable AWS_REGION"))
	}
	if c.Endpoint != "" {
		cfg.BaseEndpoint = aws.String(c.Endpoint)
	}
	cfg.HTTPClient = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	cfg.RetryMaxAttempts = 0
	return cfg, transport, faults
}
