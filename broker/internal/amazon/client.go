package amazon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
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
	dialTimeout = 5 * time.Second

	// idle is shorter than Amazon keeps a connection: a request on one that was just closed at the other
	// end would fail with an unknown outcome.
	idle = 15 * time.Second
)

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
