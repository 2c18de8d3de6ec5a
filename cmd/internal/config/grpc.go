package config

import (
	"time"
)

// GRPC configures a server of outbox.v1.Delivery.
type GRPC struct {
	Target          string        `json:"target" jsonschema:"Address of the server: host:port, dns:///host:port or unix:///path. Required."`
	TLS             TLS           `json:"tls" jsonschema:"Transport security."`
	Token           Secret        `json:"token" jsonschema:"Bearer token to authenticate with. Needs TLS."`
	TokenFile       string        `json:"token_file" jsonschema:"File that holds the token, instead of token."`
	Unary           bool          `json:"unary" jsonschema:"Deliver with single requests instead of streams."`
	RequestMessages int           `json:"request_messages" min:"1" max:"10000" jsonschema:"Messages in one request; on a stream, in one piece of it."`
	MaxMessageBytes Size          `json:"max_message_bytes" min:"1024" jsonschema:"Largest request that the server takes. Messages that don't fit are not sent."`
	AckTimeout      time.Duration `json:"ack_timeout" jsonschema:"How long a call waits without any answer."`
	MaxRetryAfter   time.Duration `json:"max_retry_after" jsonschema:"Longest pause that the server may ask for."`
	Keepalive       time.Duration `json:"keepalive" jsonschema:"Pause after which a silent connection is asked for a sign of life. Servers refuse what comes more often than they allow, by default every 5 minutes."`
}

// DefaultGRPC returns the settings of a server that is only named.
func DefaultGRPC() GRPC {
	return GRPC{
		RequestMessages: 100, MaxMessageBytes: 4 << 20,
		AckTimeout: 15 * time.Second, MaxRetryAfter: 10 * time.Minute, Keepalive: 10 * time.Minute,
	}
}

func (l *loader) grpc(g *GRPC, path string) {
	l.check(g.Target != "", path+".target", "not given; name the server, for example orders.internal:443")
	l.check(g.Token.Empty() || g.TLS.Enabled, path+".tls.enabled", "false, but a token is given, which everybody on the way could read")
	l.check(g.Keepalive >= 10*time.Second, path+".keepalive", "%s is too short; the least is 10s", duration(g.Keepalive))
	l.tls(g.TLS, path+".tls")
}
