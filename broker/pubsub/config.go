package pubsub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/template"
	"google.golang.org/api/option"
)

// Config configures a Broker. Project is required.
type Config struct {
	// Project is the id of the project that the topics belong to. Required.
	Project string

	// Topic is a template of a message's topic, with the fields {topic}, {aggregate_type} and
	// {event_type}. Default "{topic}".
	Topic string

	// Format makes the records. nil sends payloads as they are, with attributes of the adapter's own.
	Format format.Format

	// CreateTopics creates a topic that doesn't exist when the first message for it comes. Without it
	// such a message is an error that can be retried.
	CreateTopics bool

	// Endpoint is host:port of a regional endpoint, such as europe-west1-pubsub.googleapis.com:443, which
	// the order of a key needs when relays may run in several regions, or of another server. Default:
	// the global endpoint, which leads to the nearest region.
	Endpoint string

	// Insecure connects without TLS and without credentials, as the emulator wants it.
	Insecure bool

	// CredentialsFile is a service account's JSON file. Default: what the environment has (Application
	// Default Credentials).
	CredentialsFile string

	// Options are further options of the client.
	Options []option.ClientOption

	// Requests bounds how many requests are on their way at a time, of all calls together. There is a connection
	// for each hundred of them, which is as many as the service takes on one. Default 256.
	Requests int

	// Timeout is how long a request waits for its answer. Then its outcome is unknown, and its connection
	// is given up. Default 10 s.
	Timeout time.Duration

	// Dial opens connections, for proxies and tests. Default: that of gRPC.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// Logger tells about topics that are created. nil is silent.
	Logger *slog.Logger

	records format.Encoder // of Format, nil without one
}

const (
	defaultRequests = 256 // a request has one key, most one message; the more are under way, the less distance costs
	perConnection   = 100
	maxRequests     = 1000
	defaultTimeout  = 10 * time.Second
)

// withDefaults returns cfg completed, with all faults reported together.
func (cfg Config) withDefaults() (Config, *template.Template, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if !projectID.MatchString(cfg.Project) {
		fault("project %q: give the id of a project, such as shop-4711", cfg.Project)
	}
	if cfg.Topic == "" {
		cfg.Topic = "{topic}"
	}
	topic, err := parseTopic(cfg.Topic)
	if err != nil {
		faults = append(faults, err)
	}
	if cfg.Format != nil {
		if cfg.records, err = cfg.Format.Bind(format.PubSub); err != nil {
			faults = append(faults, err)
		}
	}
	if cfg.Endpoint != "" {
		if _, _, err := net.SplitHostPort(cfg.Endpoint); err != nil || strings.Contains(cfg.Endpoint, "/") {
			fault("endpoint %q is not host:port, such as europe-west1-pubsub.googleapis.com:443", cfg.Endpoint)
		}
	}
	if cfg.Insecure && cfg.Endpoint == "" {
		fault("insecure needs an endpoint: Google's takes TLS alone")
	}
	if cfg.Insecure && cfg.CredentialsFile != "" {
		fault("credentials are never sent insecurely: leave out one of the two")
	}
	if cfg.Requests == 0 {
		cfg.Requests = defaultRequests
	}
	if cfg.Requests < 1 || cfg.Requests > maxRequests {
		fault("requests must be 1 to %d, not %d", maxRequests, cfg.Requests)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Timeout < 0 {
		fault("timeout must be positive, not %v", cfg.Timeout)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg, topic, errors.Join(faults...)
}

// projectID takes ids of projects, with the domain that old ones begin with.
var projectID = regexp.MustCompile(`^([a-z0-9.-]+:)?[a-z][a-z0-9-]{1,62}$`)
