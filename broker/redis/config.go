package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/broker/internal/secure"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/template"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Config configures a Broker. The zero value is ready to use.
type Config struct {
	// Stream is a template of the name of a message's stream, with the fields {topic}, {key} (the ordering
	// key), {event_type}, {aggregate_type} and {aggregate_id}. A brace itself is doubled: "{{orders}}:{topic}"
	// puts all streams into one slot of a cluster. Default "{topic}".
	Stream string

	// Format makes the records. nil sends payloads as they are, with fields of the adapter's own; with a format an
	// entry has the fields "key", "value" and "content-type" of its record, and a field for each header.
	Format format.Format

	// CreateStreams lets the first message of a stream create it. Otherwise a message to a stream that does not
	// exist fails, and can succeed later.
	CreateStreams bool

	// DedupWindow is the number of messages of a stream, the last ones, among which a repeat is recognised.
	// Memory: some 70 bytes a message, for up to twice as many. It should be several times what the relays of the
	// destination may have in flight. Default 50,000. Negative: none are recognised, and no index is kept.
	DedupWindow int

	// MaxLen trims a stream to about so many entries, MaxAge to entries younger than that, read or not. Zero:
	// nothing is trimmed. At most one of them is given.
	MaxLen int64
	MaxAge time.Duration

	// Replicas, if not zero, is how many replicas must have a message before it counts as accepted (WAIT). Fsync
	// asks that the server, and they, have it on disk as well (WAITAOF, since Redis 7.2, with appendonly yes).
	// A message for which that does not happen within WaitTimeout, default 1 s, is sent again.
	Replicas    int
	Fsync       bool
	WaitTimeout time.Duration

	// Cluster says that the addresses are of a Redis Cluster's nodes.
	Cluster bool

	// SentinelMaster, if set, names the master that the sentinels at the addresses know. SentinelUser and
	// SentinelPassword authenticate to them.
	SentinelMaster   string
	SentinelUser     string
	SentinelPassword string

	// Database is the number of the database. Zero in a cluster.
	Database int

	// User and Password authenticate. A password without a user is the one of the default user.
	User     string
	Password string

	// TLS configures TLS. nil: no TLS.
	TLS *tls.Config

	// Name identifies the connections in CLIENT LIST. Default "outbox".
	Name string

	// Connections bounds the connections to each node. Each call uses one. Default 16.
	Connections int

	// ConnectTimeout bounds a connection attempt to one address. Default 5 s.
	ConnectTimeout time.Duration

	// AckTimeout bounds the wait for the answer to what was sent at once, at most about 4 MiB. Then the outcome
	// is unknown and the connection is given up. Default 5 s.
	AckTimeout time.Duration

	// MaxMessageBytes bounds the size of a message with all its fields; a larger one is refused. Redis takes 512 MiB a
	// field (proto-max-bulk-len). Default 16 MiB.
	MaxMessageBytes int

	// Dial opens connections, for proxies and tests. Default: net.Dialer. TLS is put on top of it.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Logger tells about settings of the server that endanger the guarantees. nil is silent.
	Logger *slog.Logger

	records format.Encoder // of Format, nil without one
}

const (
	defaultTimeout      = 5 * time.Second
	defaultWait         = time.Second
	defaultWindow       = 50_000
	defaultConnections  = 16
	defaultMessageBytes = 16 << 20
	mostMessageBytes    = 512 << 20 // what a server takes as one argument, unless told otherwise
)

// withDefaults returns cfg completed, with all faults reported together.
func (cfg Config) withDefaults(addresses string) (Config, []string, *template.Template, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if cfg.Stream == "" {
		cfg.Stream = "{topic}"
	}
	streams, err := parseTemplate(cfg.Stream)
	if err != nil {
		faults = append(faults, err)
	}
	if cfg.Format != nil {
		if cfg.records, err = cfg.Format.Bind(format.Redis); err != nil {
			faults = append(faults, err)
		}
	}
	list, err := parseAddresses(addresses)
	if err != nil {
		faults = append(faults, err)
	}
	if len(list) > 1 && !cfg.Cluster && cfg.SentinelMaster == "" {
		fault("%d addresses are given: set Cluster, or name the SentinelMaster", len(list))
	}
	if cfg.Cluster && cfg.SentinelMaster != "" {
		fault("choose one of Cluster and SentinelMaster")
	}
	if cfg.Cluster && cfg.Database != 0 {
		fault("a cluster has no database but 0")
	}
	if cfg.Database < 0 {
		fault("database %d is negative", cfg.Database)
	}
	if cfg.User != "" && cfg.Password == "" {
		fault("user %q has no password", cfg.User)
	}
	if cfg.SentinelMaster == "" && (cfg.SentinelUser != "" || cfg.SentinelPassword != "") {
		fault("credentials of sentinels need a SentinelMaster")
	}
	if cfg.MaxLen < 0 || cfg.MaxAge < 0 {
		fault("maximum length and maximum age can't be negative")
	}
	if cfg.MaxLen > 0 && cfg.MaxAge > 0 {
		fault("choose one of maximum length and maximum age")
	}
	if cfg.Replicas < 0 {
		fault("replicas can't be negative, they are %d", cfg.Replicas)
	}
	if cfg.DedupWindow == 0 {
		cfg.DedupWindow = defaultWindow
	}
	cfg.DedupWindow = max(cfg.DedupWindow, 0)

	for _, d := range []struct {
		name            string
		value           *time.Duration
		standard, least time.Duration
	}{
		{"connect timeout", &cfg.ConnectTimeout, defaultTimeout, 0},
		{"ack timeout", &cfg.AckTimeout, defaultTimeout, 0},
		{"wait timeout", &cfg.WaitTimeout, defaultWait, time.Millisecond},
	} {
		if *d.value == 0 {
			*d.value = d.standard
		}
		if *d.value < d.least || *d.value < 0 {
			fault("%s can't be %v", d.name, *d.value)
		}
	}
	if (cfg.Replicas > 0 || cfg.Fsync) && cfg.WaitTimeout >= cfg.AckTimeout {
		fault("the wait timeout of %v must be shorter than the ack timeout of %v, which bounds the whole answer", cfg.WaitTimeout, cfg.AckTimeout)
	}
	for _, n := range []struct {
		name     string
		value    *int
		standard int
	}{{"connections", &cfg.Connections, defaultConnections}, {"bytes of a message", &cfg.MaxMessageBytes, defaultMessageBytes}} {
		if *n.value == 0 {
			*n.value = n.standard
		}
		if *n.value < 0 {
			fault("%s can't be negative, they are %d", n.name, *n.value)
		}
	}
	if cfg.MaxMessageBytes > mostMessageBytes {
		fault("a message of %d bytes is more than the %d that Redis takes", cfg.MaxMessageBytes, mostMessageBytes)
	}
	if cfg.Name == "" {
		cfg.Name = "outbox"
	}
	if strings.ContainsAny(cfg.Name, " \r\n") {
		fault("name %q: a client's name has no spaces or line breaks", cfg.Name)
	}
	if cfg.Dial == nil {
		cfg.Dial = new(net.Dialer).DialContext
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg, list, streams, errors.Join(faults...)
}

// parseAddresses splits a list of host:port.
func parseAddresses(addresses string) ([]string, error) {
	var list []string
	for i, address := range strings.Split(addresses, ",") {
		address = strings.TrimSpace(address)
		host, port, err := net.SplitHostPort(address)
		number, portErr := strconv.ParseUint(port, 10, 16)
		if err != nil || portErr != nil || host == "" || number == 0 || strings.ContainsAny(host, "/@ ") {
			return nil, fmt.Errorf("address %d of the list is not one such as 127.0.0.1:6379", i+1)
		}
		list = append(list, address)
	}
	return list, nil
}

// options returns cfg as the library wants it: it retries nothing, and knows no push messages.
func (cfg *Config) options(addresses []string) *redis.UniversalOptions {
	return &redis.UniversalOptions{
		Addrs:            addresses,
		ClientName:       cfg.Name,
		DB:               cfg.Database,
		Protocol:         2,
		Username:         cfg.User,
		Password:         cfg.Password,
		SentinelUsername: cfg.SentinelUser,
		SentinelPassword: cfg.SentinelPassword,
		MasterName:       cfg.SentinelMaster,
		IsClusterMode:    cfg.Cluster,

		Dialer:                cfg.dialer(),
		TLSConfig:             secure.Config(cfg.TLS),
		DialTimeout:           cfg.ConnectTimeout,
		ReadTimeout:           cfg.AckTimeout,
		WriteTimeout:          cfg.AckTimeout,
		PoolTimeout:           cfg.AckTimeout,
		ContextTimeoutEnabled: true,
		MaxRetries:            -1,
		MaxRedirects:          -1,
		DialerRetries:         1,
		PoolSize:              cfg.Connections,
		PipelinePoolSize:      -1,
		DisableIdentity:       true,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	}
}

// dialer puts TLS on top of cfg.Dial, which the library doesn't do for a dialer that isn't its own.
func (cfg *Config) dialer() func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
		defer cancel()
		conn, err := cfg.Dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return secure.Connect(ctx, conn, cfg.TLS, address)
	}
}
