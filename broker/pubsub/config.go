package pubsub

import (
	"context"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/settings"
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

	// Format makes the records. nil sends payloads unchanged, with the adapter's own attributes.
	Format format.Format

	// CreateTopics creates a missing topic when its first message comes. Without it, such a message is an error that
	// can be retried.
	CreateTopics bool

	// Endpoint is host:port of a regional endpoint, such as europe-west1-pubsub.googleapis.com:443, or of another
	// server. The order of a key needs a regional endpoint if relays may run in several regions. Default: the global
	// endpoint, which leads to the nearest region.
	Endpoint string

	// Insecure connects without TLS and without credentials, as the emulator requires.
	Insecure bool

	// CredentialsFile is a service account's JSON file. Default: what the environment has (Application
	// Default Credentials).
	CredentialsFile string

	// Options are further options of the client.
	Options []option.ClientOption

	// Requests bounds how many requests are in flight at a time, over all calls. There is one connection for each
	// hundred requests, the most that the service accepts on one. Default 256.
	Requests int

	// Timeout is how long a request waits for its answer. Then its outcome is unknown, and its connection
	// is given up. Default 10 s.
	Timeout time.Duration

	// Dial opens connections, for proxies and tests. Default: that of gRPC.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// Logger reports topics that are created. nil: slog.Default.
	Logger *slog.Logger

	records format.Encoder // the encoder of Format; nil without one
}

const (
	defaultRequests = 256 // a request has one key, usually one message; with more in flight, distance costs less
	perConnection   = 100
	maxRequests     = 1000
	defaultTimeout  = 10 * time.Second
)

// Defaults returns the Config that the zero value stands for.
func Defaults() Config {
	cfg, _, _ := Config{}.withDefaults() // without the required fields
	return cfg
}

// withDefaults returns cfg completed, and reports all faults together.
func (cfg Config) withDefaults() (Config, *template.Template, error) {
	var faults settings.Faults
	faults.Need(projectID.MatchString(cfg.Project), "Project", "%q: give the id of a project, such as shop-4711", cfg.Project)
	settings.Default(&cfg.Topic, "{topic}")
	topic, err := parseTopic(cfg.Topic)
	faults.Add("Topic", err)
	if cfg.Format != nil {
		cfg.records, err = cfg.Format.Bind(format.PubSub)
		faults.Add("Format", err)
	}
	if cfg.Endpoint != "" {
		_, _, err := net.SplitHostPort(cfg.Endpoint)
		faults.Need(err == nil && !strings.Contains(cfg.Endpoint, "/"), "Endpoint",
			"%q is not host:port, such as europe-west1-pubsub.googleapis.com:443", cfg.Endpoint)
	}
	faults.Need(!cfg.Insecure || cfg.Endpoint != "", "Endpoint", "not given, but insecure is, and Google's own takes TLS alone")
	faults.Need(!cfg.Insecure || cfg.CredentialsFile == "", "CredentialsFile",
		"credentials are never sent insecurely; leave out one of the two")
	settings.Within(&faults, "Requests", &cfg.Requests, defaultRequests, 1, maxRequests)
	settings.Positive(&faults, "Timeout", &cfg.Timeout, defaultTimeout)
	cfg.Logger = settings.Logger(cfg.Logger)
	return cfg, topic, faults.Err()
}

// projectID matches ids of projects, with the domain that old ones begin with.
var projectID = regexp.MustCompile(`^([a-z0-9.-]+:)?[a-z][a-z0-9-]{1,62}$`)
