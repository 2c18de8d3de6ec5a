package config

import (
	"reflect"
	"regexp"
	"strings"
	"time"
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
	TLS          TLS           `json:"tls" jsonschema:"Authorities and certificates for an endpoint of your own; the scheme of the endpoint decides whether TLS is used."`
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
	TLS          TLS           `json:"tls" jsonschema:"Authorities and certificates for an endpoint of your own; the scheme of the endpoint decides whether TLS is used."`
}

// PubSub configures Google Cloud Pub/Sub.
type PubSub struct {
	Project         string        `json:"project" jsonschema:"Id of the project that the topics belong to. Required."`
	Topic           string        `json:"topic" jsonschema:"Template of the topic, with the fields {topic}, {event_type} and {aggregate_type}."`
	Endpoint        string        `json:"endpoint" jsonschema:"Regional endpoint, host:port, such as europe-west1-pubsub.googleapis.com:443. Empty: the global one."`
	Insecure        bool          `json:"insecure" jsonschema:"Whether to go without TLS and credentials. For the emulator alone."`
	CredentialsFile string        `json:"credentials_file" jsonschema:"JSON file of credentials. Empty: Application Default Credentials."`
	CreateTopics    bool          `json:"create_topics" jsonschema:"Whether missing topics are created."`
	Requests        int           `json:"requests" min:"1" max:"1000" jsonschema:"Requests that are on their way at a time, at most."`
	Timeout         time.Duration `json:"timeout" jsonschema:"How long a request waits for its answer."`
}

// DefaultSQS returns the settings of SQS that is only named.
func DefaultSQS() SQS {
	return SQS{Queue: "{topic}.fifo", Payload: "auto", Requests: 16, Timeout: 10 * time.Second}
}

// DefaultSNS returns the settings of SNS that is only named.
func DefaultSNS() SNS {
	return SNS{Payload: "auto", Requests: 16, Timeout: 10 * time.Second}
}

// DefaultPubSub returns the settings of Pub/Sub that is only named.
func DefaultPubSub() PubSub {
	return PubSub{Topic: "{topic}", Requests: 256, Timeout: 10 * time.Second}
}

// defaultOfCloud sets v to its default if it is one of the types above, and reports whether it is.
func defaultOfCloud(v reflect.Value) bool {
	switch p := v.Addr().Interface().(type) {
	case *SQS:
		*p = DefaultSQS()
	case *SNS:
		*p = DefaultSNS()
	case *PubSub:
		*p = DefaultPubSub()
	default:
		return false
	}
	return true
}

var accountID = regexp.MustCompile(`^[0-9]{12}$`)

func (l *loader) sqs(s *SQS, path string) {
	l.template(path+".queue", s.Queue, "topic", "event_type", "aggregate_type")
	l.check(s.Unordered || strings.HasSuffix(s.Queue, ".fifo"), path+".queue",
		"%q names standard queues, which keep no order; end it in .fifo, or set unordered", s.Queue)
	l.check(s.Account == "" || accountID.MatchString(s.Account), path+".account", "%q is not an account's id, which has 12 digits", s.Account)
	l.endpoint(path+".endpoint", s.Endpoint)
	l.ownTLS(s.TLS, s.Endpoint, path)
}

func (l *loader) sns(s *SNS, path string) {
	const example = "arn:aws:sns:eu-central-1:123456789012:{topic}.fifo"
	l.check(s.Topic != "", path+".topic", "not given; set a template such as %s", example)
	if s.Topic != "" {
		l.template(path+".topic", s.Topic, "topic", "event_type", "aggregate_type")
		l.check(strings.HasPrefix(s.Topic, "arn:"), path+".topic", "%q is not an ARN such as %s", s.Topic, example)
		l.check(s.Unordered || strings.HasSuffix(s.Topic, ".fifo"), path+".topic",
			"%q names standard topics, which keep no order; end it in .fifo, or set unordered", s.Topic)
	}
	l.endpoint(path+".endpoint", s.Endpoint)
	l.ownTLS(s.TLS, s.Endpoint, path)
}

func (l *loader) pubsub(p *PubSub, path string) {
	l.check(p.Project != "", path+".project", "not given; set the id of the project")
	l.template(path+".topic", p.Topic, "topic", "event_type", "aggregate_type")
	if p.Endpoint != "" {
		l.address(path+".endpoint", p.Endpoint, "europe-west1-pubsub.googleapis.com:443")
	}
	l.check(!p.Insecure || p.Endpoint != "", path+".endpoint", "not given, but insecure is true")
	l.check(!p.Insecure || p.CredentialsFile == "", path+".credentials_file", "credentials are never sent insecurely; leave out one of the two")
	l.readable(path+".credentials_file", p.CredentialsFile)
}

// endpoint checks the URL of a service of Amazon's.
func (l *loader) endpoint(path, url string) {
	l.check(url == "" || strings.HasPrefix(url, "https://") || strings.HasPrefix(url, "http://"), path,
		"%q is not a URL such as https://vpce-1.sqs.eu-central-1.vpce.amazonaws.com", url)
}

// ownTLS checks TLS settings that are for an endpoint of one's own.
func (l *loader) ownTLS(t TLS, endpoint, path string) {
	l.tls(t, path+".tls")
	l.check(!t.Enabled || !strings.HasPrefix(endpoint, "http://"), path+".tls.enabled", "true, but the endpoint begins with http://")
}
