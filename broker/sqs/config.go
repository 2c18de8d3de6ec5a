package sqs

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/pgoutbox/outbox/broker/internal/amazon"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Config configures a Broker. The zero value is ready to use if the environment has a region.
type Config struct {
	// Queue is a template of the name of a message's queue, with the fields {topic}, {aggregate_type} and
	// {event_type}, in which dots become hyphens. Names that end in .fifo are FIFO queues. Default
	// "{topic}.fifo".
	Queue string

	// Queues has the queues of some topics, which override the template.
	Queues map[string]string

	// Account is the 12-digit id of the account that owns the queues. Default: that of the credentials.
	Account string

	// Unordered allows standard queues. They keep no order, not even within a key, and now and then deliver a message
	// more than once. Without it a name that doesn't end in .fifo is an error.
	Unordered bool

	// CreateQueues, if set, creates a missing queue when its first message comes. Without it, such a message is an
	// error that can be retried. An existing queue is never changed.
	CreateQueues *QueueSettings

	// Payload is how a payload becomes text: "auto" sends text unchanged and the rest in base64, "text" refuses the
	// rest, "base64" sends everything in base64. Default "auto".
	Payload string

	// Format makes the records. nil sends payloads unchanged, with the adapter's own attributes. With a format, the
	// attributes are those of the format, a message with more than ten of them is refused, and Payload applies to the
	// format's output.
	Format format.Format

	// Region of the queues, such as eu-central-1. Default: the one that the AWS SDK finds, for instance in AWS_REGION.
	Region string

	// Endpoint is the URL of a VPC endpoint, or of another server with the protocol of SQS. Default:
	// the region's.
	Endpoint string

	// AWS replaces the configuration that the AWS SDK finds in environment, files and metadata service, above all its
	// credentials. Its retries and HTTP client aren't used.
	AWS *aws.Config

	// TLS configures TLS with the endpoint. nil means the system's certificate authorities.
	TLS *tls.Config

	// Requests bounds how many requests are in flight at a time, over all calls. Default 16.
	Requests int

	// Timeout is how long a request waits for its answer. Then its outcome is unknown. Default 10 s.
	Timeout time.Duration

	// Dial opens connections, for proxies and tests. Default: net.Dialer with a timeout of 5 s.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Logger reports queues that are created or endanger the guarantees. nil: slog.Default.
	Logger *slog.Logger
}

// QueueSettings describe queues to be created. What isn't named here has the service's default.
type QueueSettings struct {
	// Retention is how long a queue keeps a message, one minute to 14 days. Default 14 days.
	Retention time.Duration

	// SharedThroughput creates FIFO queues whose rate is limited as a whole, to 300 requests a second,
	// instead of queues in high throughput mode.
	SharedThroughput bool
}

const (
	maxRetention = 14 * 24 * time.Hour

	requestBytes = 1 << 20 // of all messages of a request, and of any of them
)

// Defaults returns the Config that the zero value stands for.
func Defaults() Config {
	cfg, _, _ := Config{}.complete(new(settings.Faults)) // without the required fields
	return cfg
}

// complete returns cfg completed, and the names of its queues.
func (cfg Config) complete(faults *settings.Faults) (Config, amazon.Common, *amazon.Names) {
	settings.Default(&cfg.Queue, "{topic}"+amazon.FIFO)
	names := amazon.NewNames(faults, "Queue", cfg.Queue, cfg.Queues, cfg.nameFault)
	faults.Need(cfg.Account == "" || len(cfg.Account) == 12 && strings.Trim(cfg.Account, "0123456789") == "", "Account",
		"%q: an account's id has 12 digits", cfg.Account)
	if cfg.CreateQueues != nil {
		create := *cfg.CreateQueues
		settings.Within(faults, "CreateQueues.Retention", &create.Retention, maxRetention, time.Minute, maxRetention)
		cfg.CreateQueues = &create
	}
	common := cfg.common(faults)
	return cfg, common, names
}

// common is the part of cfg that SNS has too, completed; it also completes cfg.
func (cfg *Config) common(faults *settings.Faults) amazon.Common {
	c := amazon.Common{
		Payload: amazon.Payload(cfg.Payload), Format: cfg.Format, Region: cfg.Region, Endpoint: cfg.Endpoint, AWS: cfg.AWS, TLS: cfg.TLS,
		Requests: cfg.Requests, Timeout: cfg.Timeout, Dial: cfg.Dial, Logger: cfg.Logger,
	}
	c.Complete(faults, format.SQS)
	cfg.Payload, cfg.Requests, cfg.Timeout, cfg.Logger = string(c.Payload), c.Requests, c.Timeout, c.Logger
	return c
}

// nameFault returns why a queue can't have this name, or may not be used; "" if it may.
func (cfg *Config) nameFault(name string) string {
	const most = 80
	return amazon.NameFault("queue", name, most, cfg.Unordered)
}
