package sns

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/pgoutbox/outbox/broker/internal/amazon"
	"github.com/pgoutbox/outbox/format"
)

// Config configures a Broker. Topic is required.
type Config struct {
	// Topic is a template of the ARN of a message's topic, with the fields {topic}, {aggregate_type} and
	// {event_type}, in which dots become hyphens: arn:aws:sns:eu-central-1:123456789012:{topic}.fifo.
	// Names that end in .fifo are FIFO topics. Required.
	Topic string

	// Topics has the ARNs of some topics, instead of the template.
	Topics map[string]string

	// Unordered allows standard topics. They keep no order, not within a key either, and deliver a
	// message more than once now and then. Without it a name that doesn't end in .fifo is an error.
	Unordered bool

	// CreateTopics creates a topic that doesn't exist when the first message for it comes. Without it
	// such a message is an error that can be retried. An existing topic is never changed.
	CreateTopics bool

	// Payload is how a payload becomes text: "auto" sends text as it is and the rest in base64, "text"
	// refuses the rest, "base64" sends everything in base64. Default "auto".
	Payload string

	// Format makes the records. nil sends payloads as they are, with attributes of the adapter's own; with a
	// format the attributes are those of the format, a message with more than ten of them is refused, and Payload
	// concerns what the format makes of the payload.
	Format format.Format

	// Region whose endpoint is called. Default: that of Topic.
	Region string

	// Endpoint is the URL of a VPC endpoint, or of another server with the protocol of SNS. Default:
	// the region's.
	Endpoint string

	// AWS replaces the configuration that the AWS SDK finds in environment, files and metadata service:
	// above all its credentials. Its retries and HTTP client aren't used.
	AWS *aws.Config

	// TLS configures TLS with the endpoint. nil means the system's certificate authorities.
	TLS *tls.Config

	// Requests bounds how many requests are on their way at a time, of all calls together. Default 16.
	Requests int

	// Timeout is how long a request waits for its answer. Then its outcome is unknown. Default 10 s.
	Timeout time.Duration

	// Dial opens connections, for proxies and tests. Default: net.Dialer with a timeout of 5 s.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Logger tells about topics that are created or endanger the guarantees. nil is silent.
	Logger *slog.Logger

	records format.Encoder // of Format, nil without one
}

const (
	defaultLimit = 256 << 10 // of a message and of a request, unless the topic says otherwise
	largestLimit = 1 << 20
)

// withDefaults returns cfg completed, with all faults reported together, and what is made of it.
func (cfg Config) withDefaults() (Config, *amazon.Names, aws.Config, *http.Transport, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	var names *amazon.Names
	if cfg.Topic == "" {
		fault("no topic: give a template such as arn:aws:sns:eu-central-1:123456789012:{topic}.fifo")
	} else {
		var wrong []error
		names, wrong = amazon.NewNames(cfg.Topic, cfg.Topics, cfg.nameFault)
		for _, err := range wrong {
			fault("topic: %w", err)
		}
	}
	if parsed, err := arn.Parse(cfg.Topic); err == nil && cfg.Region == "" {
		cfg.Region = parsed.Region
	}
	sending, wrong := amazon.Sending{
		Payload: cfg.Payload, Format: cfg.Format, Requests: cfg.Requests, Timeout: cfg.Timeout, Logger: cfg.Logger,
	}.Complete(format.SNS)
	faults = append(faults, wrong...)
	cfg.Payload, cfg.Requests, cfg.Timeout, cfg.Logger = sending.Payload, sending.Requests, sending.Timeout, sending.Logger
	cfg.records = sending.Records
	client := amazon.Client{Region: cfg.Region, Endpoint: cfg.Endpoint, AWS: cfg.AWS, TLS: cfg.TLS, Dial: cfg.Dial, Requests: cfg.Requests}
	sdk, transport, wrong := client.Open()
	return cfg, names, sdk, transport, errors.Join(append(faults, wrong...)...)
}

// nameFault tells why a topic can't have this ARN, or may not be used; "" if it may.
func (cfg *Config) nameFault(name string) string {
	const most = 256
	parsed, err := arn.Parse(name)
	if err != nil || parsed.Service != "sns" || parsed.Region == "" || parsed.AccountID == "" {
		return "is not the ARN of a topic, such as arn:aws:sns:eu-central-1:123456789012:orders.fifo"
	}
	return amazon.NameFault("topic", parsed.Resource, most, cfg.Unordered)
}
