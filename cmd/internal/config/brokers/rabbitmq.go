package brokers

import (
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/config/transport"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
)

// RabbitMQ configures RabbitMQ.
type RabbitMQ struct {
	URL            scalar.URL      `json:"url" jsonschema:"Server URL, amqp:// or amqps://, or several of one cluster separated by commas."`
	URLFile        string          `json:"url_file" jsonschema:"File that holds the URL, instead of url."`
	Exchange       string          `json:"exchange" jsonschema:"Template of the exchange, with the fields {topic}, {key}, {event_type}, {aggregate_type} and {aggregate_id}. Empty: the routing key names the queue."`
	RoutingKey     string          `json:"routing_key" jsonschema:"Template of the routing key, with the same fields."`
	CreateExchange string          `json:"create_exchange" jsonschema:"Kind of which the exchange is created when it is missing: topic, direct, fanout. Empty: it isn't."`
	CreateQueues   []RabbitMQQueue `json:"create_queues" jsonschema:"Quorum queues that are created when they are missing."`
	User           string          `json:"user" jsonschema:"User to authenticate as, instead of the URL's."`
	Password       scalar.Secret   `json:"password" jsonschema:"The user's password."`
	PasswordFile   string          `json:"password_file" jsonschema:"File that holds the password, instead of password."`
	External       bool            `json:"external" jsonschema:"Whether to authenticate by the client's certificate."`
	TLS            transport.TLS   `json:"tls" jsonschema:"Transport security, for amqps:// URLs."`
}

// RabbitMQQueue is a queue to be created.
type RabbitMQQueue struct {
	Name      string   `json:"name" jsonschema:"Name of the queue. Required."`
	Bindings  []string `json:"bindings" jsonschema:"Routing keys, or patterns of them, that bind it to the exchange."`
	MaxLength int      `json:"max_length" min:"0" jsonschema:"Messages from which on it refuses more, so that the relay waits. 0: no limit."`
}

// SetDefaults gives the defaults of the adapter.
func (r *RabbitMQ) SetDefaults() {
	fields.Adopt(r, rabbitmq.Defaults())
	r.URL = scalar.NewURL("amqp://127.0.0.1:5672/")
}

func (*RabbitMQ) shares() bool { return true }

func (r *RabbitMQ) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	var cfg rabbitmq.Config
	o.configure(&cfg, *r, r.TLS, &faults)
	broker, err := rabbitmq.New(r.URL.Text(), cfg)
	return withFaults(broker, err, &faults)
}
