package rabbitmq

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/internal/template"
	"github.com/rabbitmq/amqp091-go"
)

// Config configures a Broker. The zero value is ready to use.
type Config struct {
	// Exchange and RoutingKey are templates, with the fields {topic}, {key} (the ordering key), {event_type},
	// {aggregate_type} and {aggregate_id}. Default: the exchange with the empty name, which routes to the queue
	// that the routing key names, and "{topic}".
	Exchange   string
	RoutingKey string

	// Format makes the records. nil sends payloads unchanged, with the adapter's own properties and headers. With a
	// format, the headers are those of the format, and the only properties are content type, message id and delivery
	// mode.
	Format format.Format

	// CreateExchange, if set, creates Exchange if it does not exist: durable, and of this kind (topic, direct, fanout,
	// headers or a plugin's). An existing one is never changed.
	CreateExchange string

	// CreateQueues are created if they do not exist. Existing ones are never changed, nor are their bindings.
	CreateQueues []Queue

	// Name identifies the connection in the server's management. Default "outbox".
	Name string

	// User and Password authenticate. The URL may have them instead. External authenticates by the client's TLS
	// certificate (SASL EXTERNAL).
	User     string
	Password string
	External bool

	// TLS configures TLS, and then every URL must begin with amqps://. nil means the system's certificate authorities.
	TLS *tls.Config

	// Heartbeat is the pause between signs of life in both directions; after two or three missing ones the connection
	// is given up. At least 1 s. Default 10 s.
	Heartbeat time.Duration

	// ConnectTimeout bounds a connection attempt to one server. Default 5 s.
	ConnectTimeout time.Duration

	// AckTimeout is how long a call waits without any answer. Then the outcome of all unanswered messages is unknown,
	// and the connection is given up. It also bounds a blocked write and a request to the server. Default 5 s.
	AckTimeout time.Duration

	// MaxInFlight bounds the unconfirmed messages of a call, MaxInFlightBytes their payloads, counted with 512 bytes
	// more for each. A call always has at least one message in flight. Default 1024 and 4 MiB.
	MaxInFlight      int
	MaxInFlightBytes int

	// MaxMessageBytes bounds the payload; a larger one is refused. It should be no more than the server's
	// max_message_size, which is 16 MiB since RabbitMQ 4.0 and was 128 MiB before. Default 16 MiB.
	MaxMessageBytes int

	// Dial opens connections, for proxies and tests. Default: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Logger reports connections. nil: slog.Default.
	Logger *slog.Logger

	records              format.Encoder     // of Format; nil without one
	exchange, routingKey *template.Template // of Exchange and RoutingKey
}

// Queue describes a queue to be created: a durable quorum queue.
type Queue struct {
	Name string

	// Bindings are the routing keys, or patterns of them, that bind the queue to Config.Exchange. The exchange with the
	// empty name needs and allows none.
	Bindings []string

	// MaxLength, if not zero, is the number of messages at which the queue refuses more, so that the relay waits.
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

// Defaults returns the Config that the zero value stands for.
func Defaults() Config {
	cfg, _, _ := Config{}.withDefaults("") // without the required fields
	return cfg
}

// withDefaults returns cfg completed, and reports all faults together. Errors don't repeat URLs, which may contain a
// password.
func (cfg Config) withDefaults(list string) (Config, []server, error) {
	var faults settings.Faults
	servers, err := parseServers(list)
	faults.Add("URL", err)
	settings.Default(&cfg.Name, "outbox")
	settings.Default(&cfg.RoutingKey, "{topic}")
	if cfg.Format != nil {
		cfg.records, err = cfg.Format.Bind(format.AMQP)
		faults.Add("Format", err)
	}
	exchange, err := parseTemplate("exchange", cfg.Exchange)
	faults.Add("Exchange", err)
	cfg.exchange = exchange
	cfg.routingKey, err = parseTemplate("routing key", cfg.RoutingKey)
	faults.Add("RoutingKey", err)

	named := exchange != nil && exchange.Constant() && cfg.Exchange != ""
	faults.Need(cfg.CreateExchange == "" || named || exchange == nil, "CreateExchange",
		"an exchange can be created only if the exchange given is its name, and has no fields")
	for i, q := range cfg.CreateQueues {
		field := fmt.Sprintf("CreateQueues[%d].", i)
		faults.Need(len(q.Bindings) == 0 || named || exchange == nil, field+"Bindings",
			"a queue can be bound only if the exchange given is the name of one, and has no fields")
		faults.Need(len(q.Bindings) > 0 || !named, field+"Bindings",
			"queue %q has no bindings: nothing of exchange %q would reach it", q.Name, cfg.Exchange)
		faults.Need(q.Name != "" && len(q.Name) <= shortString && !strings.HasPrefix(q.Name, "amq."), field+"Name",
			"queue %q: a queue's name has 1 to %d bytes and doesn't begin with amq.", q.Name, shortString)
		faults.Need(q.MaxLength >= 0, field+"MaxLength", "queue %q: the maximum length can't be negative", q.Name)
	}
	faults.Need(!cfg.External || cfg.User == "", "User", "given, but external is chosen; keep one way to authenticate")
	faults.Need(cfg.Password == "" || cfg.User != "", "User", "not given, but a password is")
	if i := slices.IndexFunc(servers, func(s server) bool { return !s.encrypted }); i >= 0 {
		faults.Need(!cfg.External, "External", "needs a client's certificate, so the URL of server %d must begin with amqps://", i+1)
		faults.Need(cfg.TLS == nil, "TLS", "given, but the URL of server %d doesn't begin with amqps://", i+1)
	}

	settings.AtLeast(&faults, "Heartbeat", &cfg.Heartbeat, defaultHeartbeat, time.Second)
	settings.Positive(&faults, "ConnectTimeout", &cfg.ConnectTimeout, defaultTimeout)
	settings.Positive(&faults, "AckTimeout", &cfg.AckTimeout, defaultTimeout)
	settings.Within(&faults, "MaxInFlight", &cfg.MaxInFlight, defaultInFlight, 1, mostInFlight)
	settings.Within(&faults, "MaxInFlightBytes", &cfg.MaxInFlightBytes, defaultBytes, 1, 1<<30)
	settings.Within(&faults, "MaxMessageBytes", &cfg.MaxMessageBytes, defaultMessageBytes, 1, mostMessageBytes)
	if cfg.Dial == nil {
		cfg.Dial = new(net.Dialer).DialContext
	}
	cfg.Logger = settings.Logger(cfg.Logger)
	return cfg, servers, faults.Err()
}

// server is one of the list.
type server struct {
	url       string // without TLS, which is added below the library
	encrypted bool
}

// tls returns the TLS configuration for s, nil if it is used without TLS.
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
