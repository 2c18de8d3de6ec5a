package grpc

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/broker/internal/secure"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/settings"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// Config configures a Broker. The zero value is ready to use, without TLS.
type Config struct {
	// TLS configures TLS, for example with a client certificate. nil: no TLS. Versions before 1.2 are
	// refused unless it names one.
	TLS *tls.Config

	// Token is sent with each call as "authorization: Bearer …". TokenFile holds the token instead; it is read for each
	// call, so a replaced file takes effect. At most one of them may be set; both need TLS.
	Token     string
	TokenFile string

	// Format makes payload, content type and headers; the other fields are always the message's. nil sends the whole
	// message unchanged.
	Format format.Format

	// Unary delivers by the unary method instead of streams, for servers or proxies that can't stream. Messages then go
	// in requests of at most RequestMessages, one after another. The broker does so by itself with a server that
	// answers that it has no Stream.
	Unary bool

	// RequestMessages is how many messages one request has; on a stream, requests don't wait for each other. Default
	// 100.
	RequestMessages int

	// MaxMessageBytes is the largest request that the server accepts, in encoded bytes. A message that does not fit is
	// refused without being sent. Default 4 MiB, which is the usual default of servers.
	MaxMessageBytes int

	// AckTimeout is how long a call waits without any answer. Then the outcome of all unanswered messages is
	// unknown, and the connection is given up. It is also the deadline of a unary call. Default 15 s.
	AckTimeout time.Duration

	// ConnectTimeout bounds an attempt to connect. Default 5 s.
	ConnectTimeout time.Duration

	// MaxRetryAfter bounds the pause that a server may ask for. Default 10 min.
	MaxRetryAfter time.Duration

	// Keepalive is the silence after which a connection with calls in flight is probed; without an answer within
	// AckTimeout it is given up. Servers close connections of clients that probe more often than they allow, by default
	// every 5 min. Default 10 min, at least 10 s.
	Keepalive time.Duration

	// Dial opens connections, for proxies and tests. Default: gRPC's own, which heeds HTTPS_PROXY.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// Logger reports that the server has no streams. nil: slog.Default.
	Logger *slog.Logger

	records format.Encoder // the encoder of Format; nil without one
}

const (
	defaultRequestMessages = 100
	defaultMessageBytes    = 4 << 20
	defaultAckTimeout      = 15 * time.Second
	defaultConnectTimeout  = 5 * time.Second
	defaultRetryAfter      = 10 * time.Minute
	defaultKeepalive       = 10 * time.Minute
	leastKeepalive         = 10 * time.Second
	requestBytes           = 64 << 10 // a request is closed at this size, so that answers come early
	leastHalf              = 1 << 10  // no server takes less
	streamWindow           = 4 << 20
)

// Defaults returns the Config that the zero value stands for.
func Defaults() Config {
	cfg, _ := Config{}.withDefaults("") // without the required fields
	return cfg
}

// withDefaults returns cfg completed, and reports all faults together.
func (cfg Config) withDefaults(target string) (Config, error) {
	var faults settings.Faults
	faults.Need(target != "", "Target", "not given; name an address such as dns:///orders.internal:443 or 127.0.0.1:50051")
	settings.Positive(&faults, "RequestMessages", &cfg.RequestMessages, defaultRequestMessages)
	settings.Positive(&faults, "MaxMessageBytes", &cfg.MaxMessageBytes, defaultMessageBytes)
	settings.Positive(&faults, "AckTimeout", &cfg.AckTimeout, defaultAckTimeout)
	settings.Positive(&faults, "ConnectTimeout", &cfg.ConnectTimeout, defaultConnectTimeout)
	settings.Positive(&faults, "MaxRetryAfter", &cfg.MaxRetryAfter, defaultRetryAfter)
	settings.AtLeast(&faults, "Keepalive", &cfg.Keepalive, defaultKeepalive, leastKeepalive)
	if cfg.Format != nil {
		var err error
		cfg.records, err = cfg.Format.Bind(format.GRPC)
		faults.Add("Format", err)
	}
	faults.Need(cfg.Token == "" || cfg.TokenFile == "", "TokenFile", "given, and the token itself too; keep one of them")
	faults.Need(cfg.Token == "" && cfg.TokenFile == "" ||
		cfg.TLS != nil, "TLS", "not given, but a token is, which everybody on the way could read")
	cfg.Logger = settings.Logger(cfg.Logger)
	return cfg, faults.Err()
}

// options are those of a connection.
func (cfg *Config) options() []grpc.DialOption {
	secured := insecure.NewCredentials()
	if cfg.TLS != nil {
		secured = credentials.NewTLS(secure.Config(cfg.TLS))
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(secured),
		grpc.WithUserAgent("pgoutbox"),
		grpc.WithDisableRetry(), // the engine sends again
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(cfg.MaxMessageBytes)),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(streamWindow),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: cfg.Keepalive, Timeout: cfg.AckTimeout}),
		// The engine has its own pauses; the library's would grow to two minutes.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: cfg.ConnectTimeout,
		}),
	}
	if cfg.Token != "" || cfg.TokenFile != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer{cfg.Token, cfg.TokenFile}))
	}
	if cfg.Dial != nil {
		options = append(options, grpc.WithContextDialer(cfg.Dial))
	}
	return options
}

// bearer authenticates each call.
type bearer struct{ token, file string }

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token := b.token
	if b.file != "" {
		text, err := os.ReadFile(b.file)
		if err != nil {
			return nil, fmt.Errorf("read the token's file: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

func (b bearer) RequireTransportSecurity() bool { return true }
