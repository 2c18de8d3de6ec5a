package nats

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/format"
)

// Config configures a Broker. The zero value is ready to use.
type Config struct {
	// Name identifies the connection in the server's monitoring. Default "outbox".
	Name string

	// Subject is a template of the subject of a message, with the fields {topic}, {key} (the ordering
	// key), {event_type}, {aggregate_type} and {aggregate_id}. Default "{topic}".
	Subject string

	// Format makes the records. nil sends payloads as they are, with headers of the adapter's own; with a
	// format the headers are those of the format, and Nats-Msg-Id.
	Format format.Format

	// Stream, if set, is the only stream that may take the messages; each one names it in
	// Nats-Expected-Stream, so that a subject claimed by another stream is an error and not a surprise.
	Stream string

	// CreateStream, if set, creates Stream when it does not exist. An existing stream is never changed.
	CreateStream *StreamSettings

	// Recall is how many of the stream's last messages are read, when a connection is made, for their ids: one
	// of them that is to be sent again counts as accepted, however long ago it was stored. Within its
	// duplicate window the stream recognises repeats by itself; Recall is for outages that are longer. It
	// should be several times what the relays of the destination, and others who write to the stream, may
	// have in flight. It needs Stream, and a stream that keeps what has been consumed. Memory: some 30 bytes a
	// message. Default 0: none.
	Recall int

	// CredentialsFile holds a user JWT and its seed; NKeySeedFile a seed alone. Both are read at each
	// connect, so replaced files take effect.
	CredentialsFile string
	NKeySeedFile    string

	// User with Password, or Token, authenticate without files. They may stand in the URL instead.
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

	// AckTimeout is how long a call waits without any answer to what it sent. Then the outcome of all
	// unanswered messages is unknown and the connection is given up. It also bounds a blocked write and a
	// question to the server. Default 5 s.
	AckTimeout time.Duration

	// MaxInFlight bounds the unacknowledged messages on the connection, shared evenly by concurrent
	// calls. A server takes 10,000 per stream before it drops some. Default 4096.
	MaxInFlight int

	// MaxInFlightBytes bounds their payloads, counting 512 bytes more for each. A call always has at
	// least one message in flight. Default 16 MiB.
	MaxInFlightBytes int

	// Dial opens connections, for proxies and tests. Default: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Logger tells about connections and about streams whose settings endanger the guarantees. nil is
	// silent.
	Logger *slog.Logger

	records format.Encoder // of Format, nil without one
}

// StreamSettings describe a stream to be created. It keeps messages in files, with the server's defaults
// for all that is not named here.
type StreamSettings struct {
	// Subjects that the stream takes. Default: the template with everything from its first field on
	// replaced by ">", as in "events.>" for "events.{topic}". A template that begins with a field needs
	// them named.
	Subjects []string

	// Replicas of each message, 1 to 5. Default 1, which loses acknowledged messages with the disk, and
	// the latest ones when the machine loses power.
	Replicas int

	// DuplicateWindow is how long the stream recognises a repeated message. Default 2 min.
	DuplicateWindow time.Duration

	// MaxAge and MaxBytes bound what the stream keeps; the oldest messages go first. Zero is unlimited.
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

// withDefaults returns cfg completed, with all faults reported together.
func (cfg Config) withDefaults(servers string) (Config, []string, subject, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	urls, err := parseServers(servers)
	if err != nil {
		faults = append(faults, err)
	}
	if cfg.Name == "" {
		cfg.Name = "outbox"
	}
	if cfg.Subject == "" {
		cfg.Subject = "{topic}"
	}
	subject, err := parseSubject(cfg.Subject)
	if err != nil {
		faults = append(faults, err)
	}
	if cfg.Format != nil {
		if cfg.records, err = cfg.Format.Bind(format.NATS); err != nil {
			faults = append(faults, err)
		}
	}
	if strings.ContainsAny(cfg.Stream, " \t\r\n.*>/\\") {
		fault("stream %q: a stream's name can't contain spaces, dots, wildcards or slashes", cfg.Stream)
	}
	if cfg.InboxPrefix != "" {
		if _, err := parseSubject(cfg.InboxPrefix); err != nil || strings.Contains(cfg.InboxPrefix, "{") {
			fault("inbox prefix %q is not a valid subject", cfg.InboxPrefix)
		}
	}

	methods := 0
	for _, set := range []bool{cfg.CredentialsFile != "", cfg.NKeySeedFile != "", cfg.User != "", cfg.Token != ""} {
		if set {
			methods++
		}
	}
	if methods > 1 {
		fault("choose one of credentials file, nkey seed file, user and token")
	}
	if cfg.Password != "" && cfg.User == "" {
		fault("a password needs a user")
	}

	if cfg.Recall != 0 && cfg.Stream == "" {
		fault("to recall messages the name of their stream is needed: set Stream")
	}
	if cfg.Recall < 0 || cfg.Recall > mostRecalled {
		fault("messages to recall must be 0 to %d, not %d", mostRecalled, cfg.Recall)
	}

	if cfg.CreateStream != nil {
		create := *cfg.CreateStream
		if cfg.Stream == "" {
			fault("creating a stream needs its name: set Stream")
		}
		if len(create.Subjects) == 0 && subject.Template != nil {
			if create.Subjects = subject.ofStream(); create.Subjects == nil {
				fault("creating a stream for the subject template %q needs its subjects named, for example \"orders.>\"", cfg.Subject)
			}
		}
		if create.Replicas == 0 {
			create.Replicas = 1
		}
		if create.Replicas < 1 || create.Replicas > 5 {
			fault("replicas must be 1 to 5, not %d", create.Replicas)
		}
		if create.DuplicateWindow == 0 {
			create.DuplicateWindow = defaultDuplicates
		}
		if create.MaxAge > 0 && create.DuplicateWindow > create.MaxAge {
			fault("a duplicate window of %v can't be longer than the maximum age of %v", create.DuplicateWindow, create.MaxAge)
		}
		if create.DuplicateWindow < 0 || create.MaxAge < 0 || create.MaxBytes < 0 {
			fault("duplicate window, maximum age and maximum bytes can't be negative")
		}
		cfg.CreateStream = &create
	}

	for _, d := range []struct {
		name  string
		value *time.Duration
	}{{"connect timeout", &cfg.ConnectTimeout}, {"ack timeout", &cfg.AckTimeout}} {
		if *d.value < 0 {
			fault("%s can't be negative, it is %v", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = defaultTimeout
		}
	}
	for _, n := range []struct {
		name     string
		value    *int
		standard int
	}{{"messages in flight", &cfg.MaxInFlight, defaultInFlight}, {"bytes in flight", &cfg.MaxInFlightBytes, defaultBytes}} {
		if *n.value < 0 {
			fault("%s can't be negative, they are %d", n.name, *n.value)
		}
		if *n.value == 0 {
			*n.value = n.standard
		}
	}
	if cfg.Dial == nil {
		cfg.Dial = new(net.Dialer).DialContext
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg, urls, subject, errors.Join(faults...)
}

// parseServers splits a list of URLs. Errors do not repeat the URL, which may hold a password.
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
			return nil, fmt.Errorf("server %d of the list is not a URL such as nats://127.0.0.1:4222", i+1)
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
