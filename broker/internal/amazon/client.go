package amazon

import (
	"context"
	"crypto/tls"
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

// Common is the part that the configurations of SQS and SNS share.
type Common struct {
	Payload  Payload
	Format   format.Format
	Region   string
	Endpoint string // "" for Amazon's endpoint of the region
	AWS      *aws.Config
	TLS      *tls.Config
	Requests int // the most requests in flight, and connections that are kept
	Timeout  time.Duration
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
	Logger   *slog.Logger

	Records format.Encoder // of Format; nil without one: payloads unchanged, with our attributes
}

const (
	defaultRequests = 16
	maxRequests     = 1000

	dialTimeout = 5 * time.Second

	// idle is shorter than the time for which Amazon keeps a connection: a request on a connection that was just closed
	// by Amazon would fail with an unknown outcome.
	idle = 15 * time.Second
)

// DefaultTimeout is the default time that a request waits for its answer.
const DefaultTimeout = 10 * time.Second

// Complete sets defaults, for that protocol, and notes all faults.
func (c *Common) Complete(faults *settings.Faults, to format.Binding) {
	settings.Default(&c.Payload, PayloadAuto)
	faults.Add("Payload", c.Payload.check())
	if c.Format != nil {
		var err error
		c.Records, err = c.Format.Bind(to)
		faults.Add("Format", err)
	}
	settings.Within(faults, "Requests", &c.Requests, defaultRequests, 1, maxRequests)
	settings.Positive(faults, "Timeout", &c.Timeout, DefaultTimeout)
	if c.Endpoint != "" {
		u, err := url.Parse(c.Endpoint)
		faults.Need(err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https"), "Endpoint",
			"%q is not a URL such as https://vpce-1.sqs.eu-central-1.vpce.amazonaws.com", c.Endpoint)
		faults.Need(err != nil || u.Scheme != "http" || c.TLS == nil, "TLS", "given, but the endpoint begins with http://")
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	c.Logger = settings.Logger(c.Logger)
}

// Open returns a configuration without retries, and the transport to close at the end. It doesn't connect.
func (c *Common) Open(faults *settings.Faults) (aws.Config, *http.Transport) {
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
		cfg, err = config.LoadDefaultConfig(context.Background())
		faults.Need(err == nil, "", "read the configuration of the AWS SDK: %w", err)
	}
	if c.Region != "" {
		cfg.Region = c.Region
	}
	faults.Need(cfg.Region != "", "Region", "not given: set one, such as eu-central-1, or the environment variable AWS_REGION")
	if c.Endpoint != "" {
		cfg.BaseEndpoint = aws.String(c.Endpoint)
	}
	cfg.HTTPClient = &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	cfg.RetryMaxAttempts = 0
	return cfg, transport
}
