package brokers

import (
	"time"

	"github.com/pgoutbox/outbox/broker/pubsub"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/transport"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
)

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

// SetDefaults gives the defaults of the adapter.
func (p *PubSub) SetDefaults() { fields.Adopt(p, pubsub.Defaults()) }

func (*PubSub) shares() bool { return true }

func (p *PubSub) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	faults.Add("CredentialsFile", findings.Readable(p.CredentialsFile))
	var cfg pubsub.Config
	o.configure(&cfg, *p, transport.TLS{}, &faults)
	broker, err := pubsub.New(cfg)
	return withFaults(broker, err, &faults)
}
