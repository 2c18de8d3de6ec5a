package brokers

import (
	"time"

	"github.com/pgoutbox/outbox/broker/sns"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/transport"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
)

// SQS configures Amazon SQS.
type SQS struct {
	Queue        string        `json:"queue" jsonschema:"Template of the queue's name, with the fields {topic}, {event_type} and {aggregate_type}; dots become hyphens. Names that end in .fifo keep the order of a key."`
	Account      string        `json:"account" jsonschema:"Id of the account that the queues belong to. Empty: that of the credentials."`
	Region       string        `json:"region" jsonschema:"Region of the queues. Empty: that of the environment, as in AWS_REGION."`
	Endpoint     string        `json:"endpoint" jsonschema:"URL of a VPC endpoint or of another server. Empty: that of the region."`
	Unordered    bool          `json:"unordered" jsonschema:"Whether standard queues are allowed, which keep no order."`
	CreateQueues bool          `json:"create_queues" jsonschema:"Whether missing queues are created."`
	Payload      string        `json:"payload" enum:"auto,text,base64" jsonschema:"auto: text as it is, and what is not text in base64. text: refuse what is not text. base64: all in base64."`
	Requests     int           `json:"requests" min:"1" max:"1000" jsonschema:"Requests that are on their way at a time, at most."`
	Timeout      time.Duration `json:"timeout" jsonschema:"How long a request waits for its answer."`
	TLS          transport.TLS `json:"tls" jsonschema:"Authorities and certificates for an endpoint of your own; the scheme of the endpoint decides whether TLS is used."`
}

// SNS configures Amazon SNS.
type SNS struct {
	Topic        string        `json:"topic" jsonschema:"Template of the topic's ARN, with the fields {topic}, {event_type} and {aggregate_type}, in which dots become hyphens: arn:aws:sns:eu-central-1:123456789012:{topic}.fifo. Names that end in .fifo keep the order of a key. Required."`
	Region       string        `json:"region" jsonschema:"Region whose endpoint is called. Empty: that of the ARN."`
	Endpoint     string        `json:"endpoint" jsonschema:"URL of a VPC endpoint or of another server. Empty: that of the region."`
	Unordered    bool          `json:"unordered" jsonschema:"Whether standard topics are allowed, which keep no order."`
	CreateTopics bool          `json:"create_topics" jsonschema:"Whether missing topics are created."`
	Payload      string        `json:"payload" enum:"auto,text,base64" jsonschema:"auto: text as it is, and what is not text in base64. text: refuse what is not text. base64: all in base64."`
	Requests     int           `json:"requests" min:"1" max:"1000" jsonschema:"Requests that are on their way at a time, at most."`
	Timeout      time.Duration `json:"timeout" jsonschema:"How long a request waits for its answer."`
	TLS          transport.TLS `json:"tls" jsonschema:"Authorities and certificates for an endpoint of your own; the scheme of the endpoint decides whether TLS is used."`
}

// SetDefaults gives the defaults of the adapter.
func (s *SQS) SetDefaults() { fields.Adopt(s, sqs.Defaults()) }

// SetDefaults gives the defaults of the adapter.
func (s *SNS) SetDefaults() { fields.Adopt(s, sns.Defaults()) }

func (s *SQS) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	var cfg sqs.Config
	o.configure(&cfg, *s, s.TLS, &faults)
	if s.CreateQueues {
		cfg.CreateQueues = &sqs.QueueSettings{}
	}
	broker, err := sqs.New(cfg)
	return withFaults(broker, err, &faults)
}

func (s *SNS) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	var cfg sns.Config
	o.configure(&cfg, *s, s.TLS, &faults)
	broker, err := sns.New(cfg)
	return withFaults(broker, err, &faults)
}
