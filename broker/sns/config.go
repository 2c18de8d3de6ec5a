package sns

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/pgoutbox/outbox/broker/internal/amazon"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Config configures a Broker. Topic is required.
type Config struct {
	// Topic is a template of the ARN of a message's topic, with the fields {topic}, {aggregate_type} and
	// {event_type}, in which dots become hyphens: arn:aws:sns:eu-central-1:123456789012:{topic}.fifo.
	// Names that end in .fifo are FIFO topics. Required.
	Topic string

	// Topics has the ARNs of some topics, which override the template.
	Topics map[string]string

	// Unordered allows standard topics. They keep no order, not even within a key, and now and then deliver a message
	// more than once. Without it a name that doesn't end in .fifo is an error.
	Unordered bool

	// CreateTopics creates a missing topic when its first message comes. Without it, such a message is an error that
	// can be retried. An existing topic is never changed.
	CreateTopics bool

	// Payload is how a payload becomes text: "auto" sends text unchanged and the rest in base64, "text" refuses the
	// rest, "base64" sends everything in base64. Default "auto".
	Payload string

	// Format makes the records. nil sends payloads unchanged, with the adapter's own attributes. With a format, the
	// attributes are those of the format, a message with more than ten of them is refused, and Payload applies to the
	// format's output.
	Format format.Format

	// Region whose endpoint is called. Default: that of Topic.
	Region string

	// Endpoint is the URL of a VPC endpoint, or of another server with the protocol of SNS. Default:
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

	// Logger reports topics that are created or endanger the guarantees. nil: slog.Default.
	Logger *slog.Logger
}

const (
	defaultLimit = 256 << 10 // of a message and of a request, unless the topic has another limit
	largestLimit = 1 << 20
)

// Defaults returns the Config that the zero value stands for.
func Defaults() Config {
	cfg, _, _ := Config{}.complete(new(settings.Faults)) // without the required fields
	return cfg
}

// complete returns cfg completed, and the names of its topics.
func (cfg Config) complete(faults *settings.Faults) (Config, amazon.Common, *amazon.Names) {
	var names *amazon.Names
	faults.Need(cfg.Topic != "", "Topic", "not given; set a template such as arn:aws:sns:eu-central-1:123456789012:{topic}.fifo")
	if cfg.Topic != "" {
		names = amazon.NewNames(faults, "Topic", cfg.Topic, cfg.Topics, cfg.nameFault)
	}
	if parsed, err := arn.Parse(cfg.Topic); err == nil {
		settings.Default(&cfg.Region, parsed.Region)
	}
	common := cfg.common(faults)
	return cfg, common, names
}

// common is the part of cfg that SQS has too, completed; it also completes cfg.
func (cfg *Config) common(faults *settings.Faults) amazon.Common {
	c := amazon.Common{
		Payload: amazon.Payload(cfg.Payload), Format: cfg.Format, Region: cfg.Region, Endpoint: cfg.Endpoint, AWS: cfg.AWS, TLS: cfg.TLS,
		Requests: cfg.Requests, Timeout: cfg.Timeout, Dial: cfg.Dial, Logger: cfg.Logger,
	}
	c.Complete(faults, format.SNS)
	cfg.Payload, cfg.Requests, cfg.Timeout, cfg.Logger = string(c.Payload), c.Requests, c.Timeout, c.Logger
	return c
}

// nameFault returns why a topic can't have this ARN, or may not be used; "" if it may.
func (cfg *Config) nameFault(name string) string {
	const most = 256
	parsed, err := arn.Parse(name)
	if err != nil || parsed.Service != "sns" || parsed.Region == "" || parsed.AccountID == "" {
		return "is not the ARN of a topic, such as arn:aws:sns:eu-central-1:123456789012:orders.fifo"
	}
	return amazon.NameFault("topic", parsed.Resource, most, cfg.Unordered)
}
