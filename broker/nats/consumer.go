package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/internal/lanes"
	"github.com/pgoutbox/outbox/internal/settings"
)

// ConsumerConfig configures what a Consumer reads. Stream and Durable are required.
type ConsumerConfig struct {
	// Stream is the stream to read.
	Stream string

	// Durable is the name of the JetStream consumer, which remembers what was acknowledged. All processes that use it
	// share its messages. It is created if it doesn't exist, with explicit acknowledgement; an existing one is never
	// changed.
	Durable string

	// Subjects are the subjects to read, if the consumer is created. Default: all of the stream.
	Subjects []string

	// FromEnd, if the consumer is created, makes it begin with messages that come from then on. Default: with the
	// oldest available message.
	FromEnd bool

	// AckWait, if the consumer is created, is the time after which the server gives a dead process's message to
	// another. Living processes report to the server that they are working on a message. Default 30 s.
	AckWait time.Duration

	// Handling configures how messages are handled.
	Handling consume.Config
}

// Consumer passes the messages of a stream to a handler.
type Consumer struct {
	conn   Config
	urls   []string
	cfg    ConsumerConfig
	engine *lanes.Engine
}

// fetchWait is how long the server looks for messages at a time. Stopping may take as long, because the messages that
// the server has sent by then must be returned in order.
const fetchWait = time.Second

// NewConsumer returns a Consumer. servers and conn configure the connection, as for New; conn's options for publishing
// are ignored. It reports all faults together and doesn't connect.
func NewConsumer(servers string, conn Config, cfg ConsumerConfig, handler consume.Handler) (*Consumer, error) {
	conn, urls, _, err := conn.withDefaults(servers)
	var faults settings.Faults
	faults.Add("", err)
	faults.Need(cfg.Stream != "", "Stream", "not given; name the stream")
	faults.Need(cfg.Durable != "", "Durable", "not given; name the durable consumer")
	settings.AtLeast(&faults, "AckWait", &cfg.AckWait, 30*time.Second, time.Second)
	engine := lanes.New(&faults, &cfg.Handling, conn.Logger, handler, lanes.Abilities{Later: true, Reject: true})
	if err := faults.Err(); err != nil {
		return nil, fmt.Errorf("nats: consumer: %w", err)
	}
	return &Consumer{conn: conn, urls: urls, cfg: cfg, engine: engine}, nil
}

// Run consumes until ctx ends. Then it waits for running handlers, returns unhandled messages to the server, and
// returns nil. It connects again after every failure. It returns an error if it can't continue: too many handlers hang
// (consume.ErrHung), or the existing JetStream consumer acknowledges in another way.
func (c *Consumer) Run(ctx context.Context) error { return c.engine.Run(ctx, c.run) }

func (c *Consumer) run(ctx context.Context) error {
	return c.engine.Reconnect(ctx, c.cfg.Handling.Logger.With("stream", c.cfg.Stream, "durable", c.cfg.Durable), errUnfit, c.connected)
}

var errUnfit = errors.New("the JetStream consumer is not fit")

// connected consumes over one connection.
func (c *Consumer) connected(ctx context.Context) error {
	l, err := connect(ctx, c.urls, &c.conn, func(string) {})
	if err != nil {
		return err
	}
	defer l.nc.Close()
	consumer, err := c.durable(ctx, l)
	if err != nil {
		return err
	}
	s := &session{Consumer: c, link: l, group: c.engine.Group(), messages: map[*lanes.Delivery]jetstream.Msg{}}
	var beating sync.WaitGroup
	stop := make(chan struct{})
	beating.Go(func() { s.beat(stop, consumer.CachedInfo().Config.AckWait/3) })
	err = s.fetch(ctx, consumer)
	s.group.Drain()
	close(stop)
	beating.Wait()
	s.giveBack()
	// The last acknowledgements must be sent before the connection closes.
	if flushErr := l.nc.FlushTimeout(c.conn.AckTimeout); err == nil && flushErr != nil {
		err = connectionLost(flushErr)
	}
	return err
}

// durable finds the JetStream consumer or creates it.
func (c *Consumer) durable(ctx context.Context, l *link) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.conn.AckTimeout)
	defer cancel()
	consumer, err := l.js.Consumer(ctx, c.cfg.Stream, c.cfg.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		deliver := jetstream.DeliverAllPolicy
		if c.cfg.FromEnd {
			deliver = jetstream.DeliverNewPolicy
		}
		consumer, err = l.js.CreateConsumer(ctx, c.cfg.Stream, jetstream.ConsumerConfig{
			Durable: c.cfg.Durable, FilterSubjects: c.cfg.Subjects, DeliverPolicy: deliver, AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: c.cfg.AckWait, MaxAckPending: 20_000,
		})
		if errors.Is(err, jetstream.ErrConsumerExists) {
			consumer, err = l.js.Consumer(ctx, c.cfg.Stream, c.cfg.Durable) // another process was faster
		}
	}
	if err != nil {
		return nil, jetStreamFault(fmt.Errorf("nats: consumer %q of stream %q: %w", c.cfg.Durable, c.cfg.Stream, err))
	}
	if policy := consumer.CachedInfo().Config.AckPolicy; policy != jetstream.AckExplicitPolicy {
		return nil, fmt.Errorf("nats: %w: consumer %q of stream %q acknowledges %v; name another, or, if no other "+
			"program uses it, delete it, which loses its position in the stream, and let it be created",
			errUnfit, c.cfg.Durable, c.cfg.Stream, policy)
	}
	return consumer, nil
}

// session is the state of consuming over one connection.
type session struct {
	*Consumer
	link  *link
	group *lanes.Group

	mu       sync.Mutex
	messages map[*lanes.Delivery]jetstream.Msg // messages that are not settled: those of group, and a few more
	returned []returned
}

type returned struct {
	sequence uint64
	msg      jetstream.Msg
}

// fetch takes messages as there is room for them, so that none waits in a buffer without progress reports to the
// server.
func (s *session) fetch(ctx context.Context, consumer jetstream.Consumer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() {
		select {
		case err := <-s.engine.Failed():
			cancel(err)
		case <-s.link.Dead:
			cancel(s.link.Cause())
		case <-ctx.Done():
		}
		s.group.Stop()
	})
	for ctx.Err() == nil {
		free := s.group.Room(ctx, s.cfg.Handling.MaxInFlight)
		if free == 0 {
			break
		}
		batch, err := consumer.Fetch(min(free, 500), jetstream.FetchMaxWait(fetchWait))
		if err != nil {
			return fmt.Errorf("nats: fetch: %w", err)
		}
		pending := uint64(0)
		for msg := range batch.Messages() {
			if meta, err := msg.Metadata(); err == nil {
				pending = meta.NumPending
			}
			if ctx.Err() != nil {
				s.unhandled(msg)
				continue
			}
			s.take(msg)
		}
		s.engine.Lag(s.cfg.Stream, int64(pending)+int64(s.group.Held()))
		if err := batch.Error(); err != nil && ctx.Err() == nil {
			return fmt.Errorf("nats: fetch from consumer %q of stream %q: %w", s.cfg.Durable, s.cfg.Stream, err)
		}
	}
	return context.Cause(ctx)
}

func (s *session) take(msg jetstream.Msg) {
	d := &lanes.Delivery{Source: msg.Subject()}
	d.Message, d.Err = decode(msg.Subject(), msg.Headers(), msg.Data())
	if meta, err := msg.Metadata(); err == nil {
		d.Source = fmt.Sprintf("%s@%d", meta.Stream, meta.Sequence.Stream)
		d.Attempts = int(min(meta.NumDelivered-1, 1_000_000))
	}
	s.engine.Decode(d)
	d.Settle = func(o consume.Outcome, pause time.Duration) error {
		s.mu.Lock()
		delete(s.messages, d)
		s.mu.Unlock()
		switch o {
		case consume.Done:
			return msg.Ack()
		case consume.Later:
			return msg.NakWithDelay(pause)
		case consume.Rejected:
			return msg.TermWithReason("its consumer can't apply it")
		}
		s.unhandled(msg)
		return nil
	}
	s.mu.Lock()
	s.messages[d] = msg
	s.mu.Unlock()
	s.group.Add(d)
}

func (s *session) unhandled(msg jetstream.Msg) {
	r := returned{msg: msg}
	if meta, err := msg.Metadata(); err == nil {
		r.sequence = meta.Sequence.Stream
	}
	s.mu.Lock()
	s.returned = append(s.returned, r)
	s.mu.Unlock()
}

// giveBack returns unhandled messages to the server, in the order of the stream, in which the server delivers them
// again.
func (s *session) giveBack() {
	slices.SortFunc(s.returned, func(a, b returned) int { return cmp.Compare(a.sequence, b.sequence) })
	for _, r := range s.returned {
		if err := r.msg.Nak(); err != nil {
			return // the connection is lost, and the server notices that itself
		}
	}
}

// beat reports to the server that messages are being worked on.
func (s *session) beat(stop <-chan struct{}, every time.Duration) {
	tick := time.NewTicker(max(every, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		s.mu.Lock()
		for _, msg := range s.messages {
			_ = msg.InProgress() // if the connection is lost, fetch notices
		}
		for _, r := range s.returned {
			_ = r.msg.InProgress()
		}
		s.mu.Unlock()
	}
}
