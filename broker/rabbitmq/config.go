package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/format"
	"github.com/rabbitmq/amqp091-go"
)

// Config configures a Broker. The zero value is ready to use.
type Config struct {
	// Exchange and RoutingKey are templates, with the fields {topic}, {key} (the ordering key), {event_type},
	// {aggregate_type} and {aggregate_id}. Default: the exchange with the empty name, which routes to the queue
	// that the routing key names, and "{topic}".
	Exchange   string
	RoutingKey string

	// Format makes the records. nil sends payloads as they are, with properties and headers of the adapter's own; with
	// a format the headers are those of the format, and of the properties only content type, message id and delivery
	// mode are set.
	Format format.Format

	// CreateExchange, if set, creates Exchange when it does not exist: durable, and of this kind (topic, direct,
	// fanout, headers or a plugin's). One that exists is never changed.
	CreateExchange string

	// CreateQueues are created when they do not exist. One that exists is never changed, nor are its bindings.
	CreateQueues []Queue

	// Name identifies the connection in the server's management. Default "outbox".
	Name string

	// User and Password authenticate. They may stand in the URL instead. External authenticates by the client's
	// certificate in TLS (SASL EXTERNAL).
	User     string
	Password string
	External bool

	// TLS configures TLS, and then every URL must begin with amqps://. nil means the system's certificate authorities.
	TLS *tls.Config

	// Heartbeat is the pause after which both sides say that they are alive; after two or three silent ones the
	// connection is given up. At least 1 s. Default 10 s.
	Heartbeat time.Duration

	// ConnectTimeout bounds a connection attempt to one server. Default 5 s.
	ConnectTimeout time.Duration

	// AckTimeout is how long a call waits without any answer to what it sent. Then the outcome of all unanswered
	// messages is unknown and the connection is given up. It also bounds a blocked write and a question to the
	// server. Default 5 s.
	AckTimeout time.Duration

	// MaxInFlight bounds the unconfirmed messages of a call, MaxInFlightBytes their payloads, counting 512 bytes more
	// for each. A call always has at least one message in flight. Default 1024 and 4 MiB.
	MaxInFlight      int
	MaxInFlightBytes int

	// MaxMessageBytes bounds the payload; a larger one is refused. It should be no more than the server's
	// max_message_size, which is 16 MiB since RabbitMQ 4.0 and was 128 MiB before. Default 16 MiB.
	MaxMessageBytes int

	// Dial opens connections, for proxies and tests. Default: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Logger tells about connections. nil is silent.
	Logger *slog.Logger

	records format.Encoder // of Format, nil without one
}

// Queue describes a queue to be created: a durable quorum queue.
type Queue struct {
	Name string

	// Bindings are the routing keys, or patterns of them, that bind the queue to Config.Exchange. The exchange with
	// the empty name needs none, and takes none.
	Bindings []string

	// MaxLength, if not zero, is the number of messages from which on the queue refuses more, so that the relay
	// waits.
	MaxLength int64
}

const (
	defaultTimeout      = 5 * time.Second
	defaultHeartbeat    = 10 * time.Second
	defaultInFlight     = 1024
	defaultBytes        = 4 << 20
	defaultMessageBytes = 16 << 20
	mostMessageBytes    = 512 << 20 // RabbitMQ's own limit
	mostInFlight        = 65536
)

// withDefaults returns cfg completed, with all faults reported together. Errors do not repeat URLs, which may hold a
// password.
func (cfg Config) withDefaults(list string) (Config, []server, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	servers, err := parseServers(list)
	if err != nil {
		faults = append(faults, err)
	}
	if cfg.Name == "" {
		cfg.Name = "outbox"
	}
	if cfg.RoutingKey == "" {
		cfg.RoutingKey = "{topic}"
	}
	if cfg.Format != nil {
		if cfg.records, err = cfg.Format.Bind(format.AMQP); err != nil {
			faults = append(faults, err)
		}
	}
	exchange, err := parseTemplate("exchange", cfg.Exchange)
	if err != nil {
		faults = append(faults, err)
	}
	if _, err := parseTemplate("routing key", cfg.RoutingKey); err != nil {
		faults = append(faults, err)
	}
	if exchange != nil && (!exchange.Constant() || cfg.Exchange == "") {
		if cfg.CreateExchange != "" {
			fault("an exchange can be created only if Exchange is its name, and has no fields")
		}
		if slices.ContainsFunc(cfg.CreateQueues, func(q Queue) bool { return len(q.Bindings) > 0 }) {
			fault("queues can be bound only if Exchange is the name of an exchange, and has no fields")
		}
	}
	if exchange != nil && exchange.Constant() && cfg.Exchange != "" {
		for _, q := range cfg.CreateQueues {
			if len(q.Bindings) == 0 {
				fault("queue %q has no bindings: nothing of exchange %q would reach it", q.Name, cfg.Exchange)
			}
		}
	}
	for _, q := range cfg.CreateQueues {
		if q.Name == "" || len(q.Name) > shortString || strings.HasPrefix(q.Name, "amq.") {
			fault("queue %q: a queue's name has 1 to %d bytes and doesn't begin with amq.", q.Name, shortString)
		}
		if q.MaxLength < 0 {
			fault("queue %q: the maximum length can't be negative", q.Name)
		}
	}
	if cfg.External && cfg.User != "" {
		fault("choose one of External and User")
	}
	if cfg.Password != "" && cfg.User == "" {
		fault("a password needs a user")
	}
	if cfg.External || cfg.TLS != nil {
		for i, s := range servers {
			if !s.encrypted {
				fault("server %d: TLS, and External, need a URL that begins with amqps://", i+1)
			}
		}
	}
	cfg.durations(fault)
	cfg.numbers(fault)
	if cfg.Dial == nil {
		cfg.Dial = new(net.Dialer).DialContext
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg, servers, errors.Join(faults...)
}

func (cfg *Config) durations(fault func(string, ...any)) {
	for _, d := range []struct {
		name            string
		value           *time.Duration
		standard, least time.Duration
	}{
		{"heartbeat", &cfg.Heartbeat, defaultHeartbeat, time.Second},
		{"connect timeout", &cfg.ConnectTimeout, defaultTimeout, 0},
		{"ack timeout", &cfg.AckTimeout, defaultTimeout, 0},
	} {
		if *d.value == 0 {
			*d.value = d.standard
		}
		if *d.value < d.least {
			fault("%s can't be less than %v, it is %v", d.name, d.least, *d.value)
		}
	}
}

func (cfg *Config) numbers(fault func(string, ...any)) {
	for _, n := range []struct {
		name           string
		value          *int
		standard, most int
	}{
		{"messages in flight", &cfg.MaxInFlight, defaultInFlight, mostInFlight},
		{"bytes in flight", &cfg.MaxInFlightBytes, defaultBytes, 1 << 30},
		{"bytes of a message", &cfg.MaxMessageBytes, defaultMessageBytes, mostMessageBytes},
	} {
		if *n.value == 0 {
			*n.value = n.standard
		}
		if *n.value < 0 || *n.value > n.most {
			fault("%s must be 1 to %d, not %d", n.name, n.most, *n.value)
		}
	}
}

// server is one of the list.
type server struct {
	url       string // without TLS, which is put beneath the library
	encrypted bool
}

// tls returns how to speak TLS to s, nil if it is spoken to without.
func (s server) tls(cfg *Config) *tls.Config {
	switch {
	case !s.encrypted:
		return nil
	case cfg.TLS == nil:
		return &tls.Config{}
	}
	return cfg.TLS
}

// parseServers splits a list of URLs.
func parseServers(list string) ([]server, error) {
	var servers []server
	for i, text := range strings.Split(list, ",") {
		text = strings.TrimSpace(text)
		if text != "" && !strings.Contains(text, "://") {
			text = "amqp://" + text
		}
		uri, err := amqp091.ParseURI(text)
		parsed, parseErr := url.Parse(text)
		if err != nil || parseErr != nil || uri.Host == "" {
			return nil, fmt.Errorf("server %d of the list is not a URL such as amqp://127.0.0.1:5672/; special characters in a user name, password or virtual host must be percent-encoded", i+1)
		}
		s := server{url: text, encrypted: uri.Scheme == "amqps"}
		if s.encrypted {
			parsed.Scheme, parsed.Host = "amqp", net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
			s.url = parsed.String()
		}
		servers = append(servers, s)
	}
	return servers, nil
}
