package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/broker/internal/secure"
	"github.com/pgoutbox/outbox/broker/internal/socket"
	"github.com/rabbitmq/amqp091-go"
)

// link is one connection. It never reconnects: a break ends the link, and the calls on it.
//
// mu is a leaf: no other lock is taken while it is held.
type link struct {
	*socket.Socket
	conn    *amqp091.Connection
	cfg     *Config
	running *sync.WaitGroup // of the broker

	mu        sync.Mutex
	free      []*channel
	blocked   string               // why the server accepts no messages, "" if it does
	exchanges map[string]struct{}  // that exist
	refused   map[address]*refusal // addresses where publishing is not allowed
	mostBytes int                  // the most bytes of a message, 0 if the server hasn't told
}

// channel is an AMQP channel in confirm mode. It belongs to one call at a time.
type channel struct {
	ch      *amqp091.Channel
	returns chan amqp091.Return // with room for all messages in flight: the library drops returns without room
	closed  chan *amqp091.Error
}

// address is where a message is published; the routing key "" stands for all keys.
type address struct{ exchange, routingKey string }

// refusal means that publishing to an address was refused, and how long that is assumed to last.
type refusal struct {
	err   error
	until time.Time
}

// refusalTime is how long a refusal is assumed to last. Each test of it costs a channel.
const refusalTime = 5 * time.Second

// dial connects to one server until ctx ends. Errors are meant for people and contain no secrets.
func dial(ctx context.Context, s server, cfg *Config, running *sync.WaitGroup) (*link, error) {
	l := &link{
		cfg:       cfg,
		running:   running,
		Socket:    socket.New(),
		exchanges: make(map[string]struct{}),
		refused:   make(map[address]*refusal),
	}
	var greeted net.Conn
	config := amqp091.Config{
		Heartbeat:  cfg.Heartbeat,
		Properties: amqp091.NewConnectionProperties(),
		Dial: func(network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
			defer cancel()
			conn, err := cfg.Dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			// The deadline is for the greeting; the library removes it afterwards.
			if err := conn.SetDeadline(time.Now().Add(cfg.ConnectTimeout)); err != nil {
				conn.Close()
				return nil, err
			}
			if err := l.Hold(conn); err != nil {
				return nil, err
			}
			greeted, err = secure.Connect(ctx, timedWrites{conn, cfg.AckTimeout}, s.tls(cfg), addr)
			return greeted, err
		},
	}
	config.Properties.SetClientConnectionName(cfg.Name)
	cfg.authenticate(&config)

	// The library takes no context; closing its socket ends what it does.
	stop := context.AfterFunc(ctx, l.Shut)
	defer stop()
	var err error
	if l.conn, err = amqp091.DialConfig(s.url, config); err != nil {
		l.Shut()
		if fault := secure.Fault(greeted); fault != nil {
			err = fault // the library keeps only its text, if that
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	l.watch()
	return l, nil
}

// authenticate sets the method. The library changes what it is given, so it gets a copy.
func (cfg *Config) authenticate(config *amqp091.Config) {
	switch {
	case cfg.External:
		config.SASL = []amqp091.Authentication{&amqp091.ExternalAuth{}}
	case cfg.User != "":
		config.SASL = []amqp091.Authentication{&amqp091.PlainAuth{Username: cfg.User, Password: cfg.Password}}
	}
}

// watch follows the connection's notifications until it ends.
func (l *link) watch() {
	closed := l.conn.NotifyClose(make(chan *amqp091.Error, 1))
	blocked := l.conn.NotifyBlocked(make(chan amqp091.Blocking, 16))
	l.running.Go(func() {
		for b := range blocked {
			reason := ""
			if b.Active {
				reason = b.Reason
				if reason == "" {
					reason = "no reason given"
				}
				l.cfg.Logger.Warn("rabbitmq takes no messages", "reason", reason)
			} else {
				l.cfg.Logger.Info("rabbitmq takes messages again")
			}
			l.mu.Lock()
			l.blocked = reason
			l.mu.Unlock()
		}
	})
	l.running.Go(func() {
		err, wasFault := <-closed
		if !wasFault || err == nil {
			l.Sever(errors.New("rabbitmq: connection lost"))
			return
		}
		l.Sever(fmt.Errorf("rabbitmq: connection lost: %w", err))
		l.cfg.Logger.Info("disconnected from rabbitmq", "cause", l.Cause())
	})
}

// blockedFault returns why the server accepts no messages, nil if it does as far as is known.
func (l *link) blockedFault() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blocked == "" {
		return nil
	}
	return fmt.Errorf("rabbitmq: the server has blocked the connection (%s): it takes no messages until its alarm is "+
		"over; see rabbitmqctl status", l.blocked)
}

// channel returns a channel for one call.
func (l *link) channel(ctx context.Context) (*channel, error) {
	if err := l.blockedFault(); err != nil {
		return nil, err
	}
	for {
		if ch := l.take(); ch != nil {
			return ch, nil
		}
		// If the channel comes too late for this call, the next one uses it.
		err := l.rpc(ctx, func() error {
			ch, err := l.open()
			if err == nil {
				l.put(ch)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("rabbitmq: open a channel: %w", err)
		}
	}
}

func (l *link) open() (*channel, error) {
	ch, err := l.conn.Channel()
	if err != nil {
		return nil, err
	}
	c := &channel{
		ch:      ch,
		returns: ch.NotifyReturn(make(chan amqp091.Return, l.cfg.MaxInFlight)),
		closed:  ch.NotifyClose(make(chan *amqp091.Error, 1)),
	}
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	return c, nil
}

// take returns a free channel that works, nil if there is none.
func (l *link) take() *channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := len(l.free); n > 0; n = len(l.free) {
		ch := l.free[n-1]
		l.free = l.free[:n-1]
		if !ch.ch.IsClosed() {
			return ch
		}
	}
	return nil
}

// put returns a channel on which nothing is in flight.
func (l *link) put(ch *channel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, ch)
}

// discard closes a channel on which messages may be in flight. No caller waits for it.
func (l *link) discard(ch *channel) {
	if ch.ch.IsClosed() {
		return
	}
	l.running.Go(func() { ch.ch.Close() })
}

// rpc runs f, a request to the server, and waits for it until ctx ends. A server that doesn't answer ends the link, and
// so f returns.
func (l *link) rpc(ctx context.Context, f func() error) error {
	if !l.Usable() {
		return l.Cause()
	}
	done := make(chan error, 1)
	l.running.Go(func() { done <- f() })
	timeout := time.NewTimer(l.cfg.AckTimeout)
	defer timeout.Stop()
	select {
	case err := <-done:
		return err
	case <-l.Dead:
		return l.Cause()
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timeout.C:
		err := fmt.Errorf("rabbitmq: no answer within %v", l.cfg.AckTimeout)
		l.Sever(err)
		return err
	}
}

// Usable reports whether the connection works, as far as is known.
func (l *link) Usable() bool { return l.Alive() && !l.conn.IsClosed() }

// Close closes the connection regularly, if the server responds.
func (l *link) Close() {
	if l.Usable() {
		// It makes no difference whether the server has received it.
		_ = l.conn.CloseDeadline(time.Now().Add(goodbye))
	}
	l.Sever(errClosed)
}

// connectFault adds what to do about the usual connection errors.
func connectFault(err error) error {
	var answer *amqp091.Error
	switch {
	case errors.Is(err, amqp091.ErrSASL):
		return fmt.Errorf("rabbitmq: connect: the server doesn't offer this way to authenticate: %w; to authenticate by "+
			"certificate it needs the plugin rabbitmq_auth_mechanism_ssl, and EXTERNAL among its auth_mechanisms", err)
	case errors.Is(err, amqp091.ErrCredentials), errors.As(err, &answer) && answer.Code == amqp091.AccessRefused:
		return fmt.Errorf("rabbitmq: connect: the server refused the credentials: %w; check user, password and virtual "+
			"host (guest may connect from the server's own machine only; by a certificate one is the user of its name, who must be there)",
			err)
	case errors.Is(err, amqp091.ErrVhost), errors.As(err, &answer) && answer.Code == amqp091.NotAllowed:
		return fmt.Errorf("rabbitmq: connect: %w; check that the virtual host exists and that the user may enter it", err)
	}
	return fmt.Errorf("rabbitmq: connect: %w", err)
}

// timedWrites is a connection on which no write blocks forever: a server that has blocked the connection stops reading.
type timedWrites struct {
	net.Conn
	timeout time.Duration
}

func (t timedWrites) Write(p []byte) (int, error) {
	if err := t.Conn.SetWriteDeadline(time.Now().Add(t.timeout)); err != nil {
		return 0, err
	}
	return t.Conn.Write(p)
}
