package nats

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Config configures a Broker. The zero value is ready to use.
type Config struct {
	// Name identifies the connection in the server's monitoring. Default "outbox".
	Name string

	// Subject is a template of a message's subject, with the fields {topic}, {key} (the ordering key), {event_type},
	// {aggregate_type} and {aggregate_id}. Default "{topic}".
	Subject string

	// Format makes the records. nil sends payloads unchanged, with the adapter's own headers; with a format, the
	// headers are those of the format, and Nats-Msg-Id.
	Format format.Format

	// Stream, if set, is the only stream that may take the messages. Each message names it in Nats-Expected-Stream, so
	// a subject that belongs to another stream is an error.
	Stream string

	// CreateStream, if set, creates Stream when it does not exist. An existing stream is never changed.
	CreateStream *StreamSettings

	// Recall is how many of the stream's last messages are read for their ids when a connection is made. If one of
	// these messages is sent again, it counts as accepted without being stored again, however long ago it was stored.
	// Within its duplicate window the stream itself recognises repeats; Recall is for longer outages. It should be
	// several times the number of messages that the destination's relays, and other writers of the stream, may have in
	// flight. It needs Stream, and a stream that keeps consumed messages. Memory: some 30 bytes a message. Default 0:
	// none.
	Recall int

	// CredentialsFile has a user JWT and its seed; NKeySeedFile has only a seed. Both are read at each connect, so
	// replaced files take effect.
	CredentialsFile string
	NKeySeedFile    string

	// User with Password, or Token, authenticate without files. The URL may have them instead.
	User     string
	Password string
	Token    string

	// TLS configures TLS, which is used when the server asks for it or the URL begins with tls://.
	// nil means the system's certificate authorities.
	TLS *tls.Config

	// InboxPrefix replaces "_INBOX" in the subjects of acknowledgements, for accounts that may not
	// subscribe to it. The user needs to subscribe to "<InboxPrefix>.>".
	InboxPrefix string

	// Domain is the JetStream domain for looking streams up, as behind a leaf node.
	Domain string

	// ConnectTimeout bounds a connection attempt to one server. Default 5 s.
	ConnectTimeout time.Duration

	// AckTimeout is how long a call waits without any answer. Then the outcome of all unanswered messages is unknown,
	// and the connection is given up. It also bounds a blocked write and a request to the server. Default 5 s.
	AckTimeout time.Duration

	// MaxInFlight bounds the unacknowledged messages on the connection; concurrent calls share it evenly. A server
	// accepts 10,000 per stream before it drops some. Default 4096.
	MaxInFlight int

	// MaxInFlightBytes bounds their payloads, counted with 512 bytes more for each. A call always has at least one
	// message in flight. Default 16 MiB.
	MaxInFlightBytes int

	// Dial opens connections, for proxies and tests. Default: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Logger reports connections, and streams whose settings endanger the guarantees. nil: slog.Default.
	Logger *slog.Logger

	records format.Encoder // the encoder of Format; nil without one
}

// StreamSettings describe a stream to be created. It stores messages in files, and has the server's defaults for all
// other settings.
type StreamSettings struct {
	// Subjects of the stream. Default: the template with everything from its first field on replaced by ">", as in
	// "events.>" for "events.{topic}". Required for a template that begins with a field.
	Subjects []string

	// Replicas of each message, 1 to 5. With the default, 1, acknowledged messages are lost with the disk, and the
	// latest ones when the machine loses power.
	Replicas int

	// DuplicateWindow is how long the stream recognises a repeated message. Default 2 min.
	DuplicateWindow time.Duration

	// MaxAge and MaxBytes bound what the stream keeps; the oldest messages are removed first. Zero is unlimited.
	MaxAge   time.Duration
	MaxBytes int64
}

const (
	defaultTimeout     = 5 * time.Second
	defaultInFlight    = 4096
	defaultBytes       = 16 << 20
	defaultDuplicates  = 2 * time.Minute
	mostRecalled       = 10_000_000
	longestNATSSubject = 2048 // well inside a server's default limit of 4096 for a control line
)

// Defaults returns the Config that the zero value stands for.
func Defaults() Config {
	cfg, _, _, _ := Config{}.withDefaults("") // without the required fields
	return cfg
}

// withDefaults returns cfg completed, and reports all faults together.
func (cfg Config) withDefaults(servers string) (Config, []string, subject, error) {
	var faults settings.Faults
	urls, err := parseServers(servers)
	faults.Add("URL", err)
	settings.Default(&cfg.Name, "outbox")
	settings.Default(&cfg.Subject, "{topic}")
	subject, err := parseSubject(cfg.Subject)
	faults.Add("Subject", err)
	if cfg.Format != nil {
		cfg.records, err = cfg.Format.Bind(format.NATS)
		faults.Add("Format", err)
	}
	faults.Need(!strings.ContainsAny(cfg.Stream, " \t\r\n.*>/\\"), "Stream",
		"%q: a stream's name can't contain spaces, dots, wildcards or slashes", cfg.Stream)
	if cfg.InboxPrefix != "" {
		_, err := parseSubject(cfg.InboxPrefix)
		faults.Need(err == nil && !strings.Contains(cfg.InboxPrefix, "{"), "InboxPrefix", "%q is not a valid subject", cfg.InboxPrefix)
	}
	var methods []string
	for _, method := range [][2]string{
		{"credentials file", cfg.CredentialsFile}, {"nkey seed file", cfg.NKeySeedFile}, {"token", cfg.Token}, {"user", cfg.User},
	} {
		if method[1] != "" {
			methods = append(methods, method[0])
		}
	}
	faults.Need(len(methods) < 2, "", "%s are given; keep one way to authenticate", strings.Join(methods, " and "))
	faults.Need(cfg.Password == "" || cfg.User != "", "User", "not given, but a password is")
	faults.Need(cfg.Recall == 0 || cfg.Stream != "", "Stream", "not given, but messages of it are to be recalled")
	faults.Need(cfg.Recall >= 0 && cfg.Recall <= mostRecalled, "Recall", "%d, it must be 0 to %d", cfg.Recall, mostRecalled)
	if cfg.CreateStream != nil {
		cfg.CreateStream = cfg.CreateStream.complete(&faults, cfg.Stream, subject)
	}
	settings.Positive(&faults, "ConnectTimeout", &cfg.ConnectTimeout, defaultTimeout)
	settings.Positive(&faults, "AckTimeout", &cfg.AckTimeout, defaultTimeout)
	settings.Positive(&faults, "MaxInFlight", &cfg.MaxInFlight, defaultInFlight)
	settings.Positive(&faults, "MaxInFlightBytes", &cfg.MaxInFlightBytes, defaultBytes)
	if cfg.Dial == nil {
		cfg.Dial = new(net.Dialer).DialContext
	}
	cfg.Logger = settings.Logger(cfg.Logger)
	return cfg, urls, subject, faults.Err()
}

func (s StreamSettings) complete(faults *settings.Faults, stream string, subject subject) *StreamSettings {
	faults.Need(stream != "", "Stream", "not given, but it is to be created")
	if len(s.Subjects) == 0 && subject.Template != nil {
		s.Subjects = subject.ofStream()
		faults.Need(s.Subjects != nil, "CreateStream.Subjects",
			"not given, and they don't follow from the template of the subject: name them, for example \"orders.>\"")
	}
	for i, name := range s.Subjects {
		faults.Need(name != "" && !strings.ContainsAny(name, " \t\r\n{}"), fmt.Sprintf("CreateStream.Subjects[%d]", i),
			"%q is not a subject such as orders.>", name)
	}
	settings.Within(faults, "CreateStream.Replicas", &s.Replicas, 1, 1, 5)
	settings.Default(&s.DuplicateWindow, defaultDuplicates)
	faults.Need(s.MaxAge <= 0 || s.DuplicateWindow <= s.MaxAge, "CreateStream.DuplicateWindow",
		"a duplicate window of %v can't be longer than the maximum age of %v", s.DuplicateWindow, s.MaxAge)
	faults.Need(s.DuplicateWindow >= 0 && s.MaxAge >= 0 && s.MaxBytes >= 0, "CreateStream.MaxAge",
		"duplicate window, maximum age and maximum bytes can't be negative")
	return &s
}

// parseServers splits a list of URLs. Errors don't repeat a URL, which may contain a password.
func parseServers(servers string) ([]string, error) {
	var urls []string
	for i, server := range strings.Split(servers, ",") {
		server = strings.TrimSpace(server)
		if server == "" {
			return nil, fmt.Errorf("server %d of the list is empty; expected a URL such as nats://127.0.0.1:4222", i+1)
		}
		if !strings.Contains(server, "://") {
			server = "nats://" + server
		}
		u, err := url.Parse(server)
		if err != nil || u.Hostname() == "" {
			return nil, fmt.Errorf("server %d of the list is not a URL such as nats://127.0.0.1:4222; special characters in a user name or password must be percent-encoded", i+1)
		}
		switch u.Scheme {
		case "nats", "tls", "ws", "wss":
		default:
			return nil, fmt.Errorf("server %d of the list has the scheme %q; expected nats, tls, ws or wss", i+1, u.Scheme)
		}
		urls = append(urls, server)
	}
	return urls, nil
}
