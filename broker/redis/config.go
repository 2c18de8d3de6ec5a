package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/broker/internal/secure"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/internal/template"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Config configures a Broker. The zero value is ready to use.
type Config struct {
	// Stream is a template of the name of a message's stream, with the fields {topic}, {key} (the ordering key),
	// {event_type}, {aggregate_type} and {aggregate_id}. A literal brace is doubled: "{{orders}}:{topic}" puts all
	// streams into one slot of a cluster. Default "{topic}".
	Stream string

	// Format makes the records. nil sends payloads unchanged, with the adapter's own fields; with a format an entry has
	// the fields "key", "value" and "content-type" of its record, and a field for each header.
	Format format.Format

	// CreateStreams lets the first message of a stream create it. Otherwise a message for a missing stream fails, and
	// can succeed later.
	CreateStreams bool

	// DedupWindow is the number of the last messages of a stream among which a repeat is recognised. Memory: some 70
	// bytes a message, for up to twice as many. It should be several times the number of messages that the
	// destination's relays may have in flight. Default 50,000. Negative: repeats are not recognised, and no index is
	// kept.
	DedupWindow int

	// MaxLen trims a stream to about that many entries, MaxAge to entries younger than that, whether or not they were
	// read. Zero: nothing is trimmed. At most one of them may be set.
	MaxLen int64
	MaxAge time.Duration

	// Replicas, if not zero, is how many replicas must have a message before it counts as accepted (WAIT). Fsync
	// requires that the server and these replicas have it on disk as well (WAITAOF, since Redis 7.2, with appendonly
	// yes). A message without that confirmation within WaitTimeout, default 1 s, is sent again.
	Replicas    int
	Fsync       bool
	WaitTimeout time.Duration

	// Cluster means that the addresses are nodes of a Redis Cluster.
	Cluster bool

	// SentinelMaster, if set, is the name of the master; the addresses are those of its sentinels. SentinelUser and
	// SentinelPassword authenticate to them.
	SentinelMaster   string
	SentinelUser     string
	SentinelPassword string

	// Database is the number of the database. Zero in a cluster.
	Database int

	// User and Password authenticate. A password without a user is the default user's.
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

	// AckTimeout bounds the wait for the answer to what was sent at once, about 4 MiB at most. Then the outcome is
	// unknown and the connection is given up. Default 5 s.
	AckTimeout time.Duration

	// MaxMessageBytes bounds the size of a message with all its fields; a larger one is refused. Redis accepts 512 MiB
	// per field (proto-max-bulk-len). Default 16 MiB.
	MaxMessageBytes int

	// Dial opens connections, for proxies and tests. Default: net.Dialer. TLS is added on top.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Logger reports settings of the server that endanger the guarantees. nil: slog.Default.
	Logger *slog.Logger

	records format.Encoder // the encoder of Format; nil without one
}

const (
	defaultTimeout      = 5 * time.Second
	defaultWait         = time.Second
	defaultWindow       = 50_000
	defaultConnections  = 16
	defaultMessageBytes = 16 << 20
	mostMessageBytes    = 512 << 20 // the largest argument that a server accepts by default
)

// Defaults returns the Config that the zero value stands for.
func Defaults() Config {
	cfg, _, _, _ := Config{}.withDefaults("") // without the required fields
	return cfg
}

// withDefaults returns cfg completed, and reports all faults together.
func (cfg Config) withDefaults(addresses string) (Config, []string, *template.Template, error) {
	var faults settings.Faults
	settings.Default(&cfg.Stream, "{topic}")
	streams, err := parseTemplate(cfg.Stream)
	faults.Add("Stream", err)
	if cfg.Format != nil {
		cfg.records, err = cfg.Format.Bind(format.Redis)
		faults.Add("Format", err)
	}
	list, err := parseAddresses(addresses)
	faults.Add("Addresses", err)
	faults.Need(len(list) < 2 || cfg.Cluster || cfg.SentinelMaster != "", "Addresses",
		"%d are given: say that they are a cluster's, or name the master that sentinels know", len(list))
	faults.Need(!cfg.Cluster || cfg.SentinelMaster == "", "Cluster",
		"given, and the name of a sentinels' master too; leave out one of the two")
	faults.Need(!cfg.Cluster || cfg.Database == 0, "Database", "%d, but a cluster has database 0 alone", cfg.Database)
	faults.Need(cfg.Database >= 0, "Database", "%d is negative", cfg.Database)
	faults.Need(cfg.User == "" || cfg.Password != "", "Password", "not given, but a user is")
	faults.Need(cfg.SentinelMaster != "" || cfg.SentinelUser == "" && cfg.SentinelPassword == "", "SentinelMaster",
		"not given, but credentials of sentinels are")
	faults.Need(cfg.MaxLen >= 0, "MaxLen", "%d is negative", cfg.MaxLen)
	faults.Need(cfg.MaxAge >= 0, "MaxAge", "%v is negative", cfg.MaxAge)
	faults.Need(cfg.MaxLen <= 0 || cfg.MaxAge <= 0, "MaxAge", "given, and a maximum length too; keep one")
	faults.Need(cfg.Replicas >= 0, "Replicas", "%d is negative", cfg.Replicas)
	settings.Default(&cfg.DedupWindow, defaultWindow)
	cfg.DedupWindow = max(cfg.DedupWindow, 0)

	settings.Positive(&faults, "ConnectTimeout", &cfg.ConnectTimeout, defaultTimeout)
	settings.Positive(&faults, "AckTimeout", &cfg.AckTimeout, defaultTimeout)
	settings.AtLeast(&faults, "WaitTimeout", &cfg.WaitTimeout, defaultWait, time.Millisecond)
	faults.Need(cfg.Replicas <= 0 && !cfg.Fsync || cfg.WaitTimeout < cfg.AckTimeout, "WaitTimeout",
		"%v, it must be shorter than the ack timeout of %v, which bounds the whole answer", cfg.WaitTimeout, cfg.AckTimeout)
	settings.Positive(&faults, "Connections", &cfg.Connections, defaultConnections)
	settings.Within(&faults, "MaxMessageBytes", &cfg.MaxMessageBytes, defaultMessageBytes, 1, mostMessageBytes)
	settings.Default(&cfg.Name, "outbox")
	faults.Need(!strings.ContainsAny(cfg.Name, " \r\n"), "Name", "%q: a client's name has no spaces or line breaks", cfg.Name)
	if cfg.Dial == nil {
		cfg.Dial = new(net.Dialer).DialContext
	}
	cfg.Logger = settings.Logger(cfg.Logger)
	return cfg, list, streams, faults.Err()
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

// options returns cfg for the library, without retries and push messages.
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

// dialer adds TLS to cfg.Dial, which the library doesn't do for a foreign dialer.
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
