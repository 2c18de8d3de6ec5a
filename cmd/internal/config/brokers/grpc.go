package brokers

import (
	"time"

	"github.com/pgoutbox/outbox/broker/grpc"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/config/transport"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
)

// GRPC configures a server of outbox.v1.Delivery.
type GRPC struct {
	Target          string        `json:"target" jsonschema:"Address of the server: host:port, dns:///host:port or unix:///path. Required."`
	TLS             transport.TLS `json:"tls" jsonschema:"Transport security."`
	Token           scalar.Secret `json:"token" jsonschema:"Bearer token to authenticate with. Needs TLS."`
	TokenFile       string        `json:"token_file" jsonschema:"File that holds the token, instead of token."`
	Unary           bool          `json:"unary" jsonschema:"Deliver with single requests instead of streams."`
	RequestMessages int           `json:"request_messages" min:"1" max:"10000" jsonschema:"Messages in one request; on a stream, in one piece of it."`
	MaxMessageBytes scalar.Size   `json:"max_message_bytes" min:"1024" jsonschema:"Largest request that the server takes. Messages that don't fit are not sent."`
	AckTimeout      time.Duration `json:"ack_timeout" jsonschema:"How long a call waits without any answer."`
	MaxRetryAfter   time.Duration `json:"max_retry_after" jsonschema:"Longest pause that the server may ask for."`
	Keepalive       time.Duration `json:"keepalive" jsonschema:"Pause after which a silent connection is asked for a sign of life. Servers refuse what comes more often than they allow, by default every 5 minutes."`
}

// SetDefaults gives the defaults of the adapter.
func (g *GRPC) SetDefaults() { fields.Adopt(g, grpc.Defaults()) }

func (*GRPC) shares() bool { return true }

func (g *GRPC) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	var cfg grpc.Config
	o.configure(&cfg, *g, g.TLS, &faults)
	cfg.TokenFile = "" // the loader has read it into Token
	broker, err := grpc.New(g.Target, cfg)
	return withFaults(broker, err, &faults)
}
