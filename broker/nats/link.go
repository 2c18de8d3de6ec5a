package nats

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/secure"
	"github.com/pgoutbox/outbox/broker/internal/socket"
)

// link is one connection. It never reconnects: a break ends the link, and the calls on it.
//
// mu is a leaf: no other lock is taken while it is held.
type link struct {
	*socket.Socket
	nc *nats.Conn
	js jetstream.JetStream

	// inbox ends with a dot. The answer to message i of call c comes on inbox + c + "." + i.
	inbox string
	sub   *nats.Subscription

	// onStream is called with the name of each stream that acknowledges, once per link.
	onStream func(string)
	streams  map[string]struct{} // of the subscription's goroutine

	stored map[outbox.ID]struct{} // ids that the stream had when the link was made, as many as Config.Recall

	mu      sync.Mutex
	calls   map[uint64]*call
	lastID  uint64
	retired bool                // the server is about to close the connection: no new calls; the link closes after the last one
	denied  map[string]struct{} // subjects on which the server refused to publish
}

// connect dials until ctx ends. options carry authentication. Errors are meant for people and contain no secrets.
func connect(ctx context.Context, urls []string, cfg *Config, onStream func(string)) (*link, error) {
	l := &link{
		Socket:   socket.New(),
		onStream: onStream,
		streams:  make(map[string]struct{}),
		calls:    make(map[uint64]*call),
		denied:   make(map[string]struct{}),
	}
	options, err := cfg.authentication()
	if err != nil {
		return nil, err
	}
	options = append(options,
		nats.Name(cfg.Name),
		nats.NoReconnect(),
		nats.Timeout(cfg.ConnectTimeout),
		nats.FlusherTimeout(cfg.AckTimeout),
		nats.PingInterval(30*time.Second),
		nats.SkipSubjectValidation(),
		nats.SetCustomDialer(dialFunc(func(network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
			defer cancel()
			conn, err := cfg.Dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return conn, l.Hold(conn)
		})),
		nats.ErrorHandler(l.asyncError),
		nats.LameDuckModeHandler(func(*nats.Conn) { l.retire() }),
		nats.ClosedHandler(func(nc *nats.Conn) {
			l.Sever(connectionLost(nc.LastError()))
			cfg.Logger.Info("disconnected from nats", "cause", l.Cause())
		}),
	)
	if cfg.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(cfg.InboxPrefix))
	}

	// The library's Connect takes no context; closing its socket ends it.
	stop := context.AfterFunc(ctx, l.Shut)
	defer stop()
	l.nc, err = nats.Connect(strings.Join(urls, ","), options...)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, connectFault(err)
	}

	l.inbox = l.nc.NewInbox() + "."
	l.sub, err = l.nc.Subscribe(l.inbox+"*.*", l.answer)
	if err == nil {
		// The messages in flight bound the answers; the library's own limit would drop some.
		err = l.sub.SetPendingLimits(-1, -1)
	}
	if err == nil {
		// A refused subscription is reported before the answer to the PING.
		err = l.flush(ctx, cfg.AckTimeout)
	}
	if err == nil && errors.Is(l.nc.LastError(), nats.ErrPermissionViolation) {
		err = fmt.Errorf("%w; acknowledgements come to %q: allow the user to subscribe to it, or set the inbox prefix "+
			"to one that is allowed", l.nc.LastError(), l.inbox+">")
	}
	if err == nil {
		l.js, err = newJetStream(l.nc, cfg.Domain)
	}
	if err != nil {
		err = connectFault(err)
		l.Sever(err)
		return nil, err
	}
	return l, nil
}

func newJetStream(nc *nats.Conn, domain string) (jetstream.JetStream, error) {
	if domain != "" {
		return jetstream.NewWithDomain(nc, domain)
	}
	return jetstream.New(nc)
}

func (cfg *Config) authentication() ([]nats.Option, error) {
	var options []nats.Option
	switch {
	case cfg.CredentialsFile != "":
		options = append(options, nats.UserCredentials(cfg.CredentialsFile))
	case cfg.NKeySeedFile != "":
		option, err := nats.NkeyOptionFromSeed(cfg.NKeySeedFile)
		if err != nil {
			return nil, fmt.Errorf("nats: read nkey seed file %s: %w", cfg.NKeySeedFile, err)
		}
		options = append(options, option)
	case cfg.User != "":
		options = append(options, nats.UserInfo(cfg.User, cfg.Password))
	case cfg.Token != "":
		options = append(options, nats.Token(cfg.Token))
	}
	if cfg.TLS != nil {
		options = append(options, func(o *nats.Options) error {
			o.TLSConfig = secure.Config(cfg.TLS)
			return nil
		})
	}
	return options, nil
}

// connectFault adds what to do about the usual connection errors.
func connectFault(err error) error {
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
		return fmt.Errorf("nats: connect: the server refused the credentials: %w; check user and password, token, nkey or credentials file",
			err)
	case errors.Is(err, nats.ErrNoServers):
		return fmt.Errorf("nats: connect: %w: no server of the list answered; check address and port", err)
	}
	return fmt.Errorf("nats: connect: %w", secure.Explain(err))
}

func connectionLost(err error) error {
	if err == nil {
		return errors.New("nats: connection lost")
	}
	return fmt.Errorf("nats: connection lost: %w", err)
}

// answer passes an acknowledgement to its call. Answers for ended calls are dropped.
func (l *link) answer(msg *nats.Msg) {
	callID, index, ok := parseReply(msg.Subject[len(l.inbox):])
	if !ok {
		return
	}
	stream, err := parseAck(msg)
	if err == nil {
		if _, found := l.streams[string(stream)]; !found {
			l.streams[string(stream)] = struct{}{}
			l.onStream(string(stream))
		}
	}
	l.mu.Lock()
	if c := l.calls[callID]; c != nil {
		c.answers = append(c.answers, answer{index: index, err: err})
		c.signal()
	}
	l.mu.Unlock()
}

// reply is the subject on which message i of call id is answered.
func (l *link) reply(id uint64, i int32) string {
	var buf [96]byte
	b := append(buf[:0], l.inbox...)
	b = strconv.AppendUint(b, id, 36)
	b = append(b, '.')
	b = strconv.AppendUint(b, uint64(i), 36)
	return string(b)
}

func parseReply(tokens string) (callID uint64, index int32, ok bool) {
	id, i, found := strings.Cut(tokens, ".")
	if !found {
		return 0, 0, false
	}
	callID, err := strconv.ParseUint(id, 36, 64)
	if err != nil {
		return 0, 0, false
	}
	n, err := strconv.ParseUint(i, 36, 31)
	return callID, int32(n), err == nil
}

// join adds c to l. It returns false if l accepts no more calls.
func (l *link) join(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.retired || !l.Alive() {
		return false
	}
	l.lastID++
	c.id = l.lastID
	l.calls[c.id] = c
	return true
}

// leave removes c from l. No answer reaches c any more.
func (l *link) leave(c *call) {
	l.mu.Lock()
	delete(l.calls, c.id)
	last := l.retired && len(l.calls) == 0
	l.mu.Unlock()
	if last {
		l.Sever(errRetired)
	}
}

var errRetired = errors.New("nats: the server is shutting down")

// retire makes l accept no more calls, because the server announced that it will close the connection.
func (l *link) retire() {
	l.mu.Lock()
	l.retired = true
	idle := len(l.calls) == 0
	l.mu.Unlock()
	if idle {
		l.Sever(errRetired)
	}
}

// Usable reports whether new calls may join.
func (l *link) Usable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.retired && l.Alive()
}

// share divides a limit of the connection among its calls.
func (l *link) share(limit int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(1, limit/max(1, len(l.calls)))
}

// Close ends the link because the broker is closed.
func (l *link) Close() {
	l.Sever(errClosed)
	l.nc.Close()
}

var publishDenied = regexp.MustCompile(`Publish to ("(?:[^"\\]|\\.)*")`)

// asyncError records refused subjects long before an acknowledgement would time out.
func (l *link) asyncError(_ *nats.Conn, _ *nats.Subscription, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		var network net.Error
		if errors.As(err, &network) {
			l.Sever(connectionLost(err))
		}
		return
	}
	found := publishDenied.FindStringSubmatch(err.Error())
	if found == nil {
		return
	}
	subject, unquoteErr := strconv.Unquote(found[1])
	if unquoteErr != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.denied[subject] = struct{}{}
	for _, c := range l.calls {
		c.denied = append(c.denied, subject)
		c.signal()
	}
}

// mayAsk reports whether the user may publish to subject, as far as is known.
func (l *link) mayAsk(subject string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, denied := l.denied[subject]
	return !denied
}

// flush waits for the server's answer to a PING.
func (l *link) flush(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return l.nc.FlushWithContext(ctx)
}

type dialFunc func(network, address string) (net.Conn, error)

// Dial implements nats.CustomDialer.
func (dial dialFunc) Dial(network, address string) (net.Conn, error) { return dial(network, address) }
