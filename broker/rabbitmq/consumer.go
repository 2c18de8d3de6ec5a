package rabbitmq

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/internal/lanes"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/rabbitmq/amqp091-go"
)

// ConsumerConfig configures what a Consumer reads. Queue is required.
type ConsumerConfig struct {
	// Queue is the queue to read. It must exist. Processes that read the same queue share its messages. They keep the
	// order of a key together if the queue was declared with x-single-active-consumer: then one of them gets messages,
	// and the others stand by.
	Queue string

	// Handling configures how messages are handled. MaxInFlight is the prefetch count. A rejected message goes to the
	// queue's dead-letter exchange, or is lost if there is none.
	Handling consume.Config
}

// Consumer passes the messages of a queue to a handler.
type Consumer struct {
	conn    Config
	servers []server
	cfg     ConsumerConfig
	engine  *lanes.Engine
}

// NewConsumer returns a Consumer. servers and conn configure the connection, as for New; conn's options for publishing
// are ignored. It reports all faults together and doesn't connect.
func NewConsumer(servers string, conn Config, cfg ConsumerConfig, handler consume.Handler) (*Consumer, error) {
	conn, list, err := conn.withDefaults(servers)
	var faults settings.Faults
	faults.Add("", err)
	faults.Need(cfg.Queue != "", "Queue", "not given; name the queue")
	faults.Need(cfg.Handling.MaxInFlight < mostInFlight, "Handling.MaxInFlight",
		"%d, but a prefetch count is at most %d", cfg.Handling.MaxInFlight, mostInFlight-1)
	engine := lanes.New(&faults, &cfg.Handling, conn.Logger, handler, lanes.Abilities{Reject: true})
	if err := faults.Err(); err != nil {
		return nil, fmt.Errorf("rabbitmq: consumer: %w", err)
	}
	return &Consumer{conn: conn, servers: list, cfg: cfg, engine: engine}, nil
}

// Run consumes until ctx ends. Then it waits for running handlers, returns unhandled messages to the server, and
// returns nil. It connects again after every failure. It returns an error if it can't continue: too many handlers hang
// (consume.ErrHung).
func (c *Consumer) Run(ctx context.Context) error { return c.engine.Run(ctx, c.run) }

func (c *Consumer) run(ctx context.Context) error {
	next := -1
	return c.engine.Reconnect(ctx, c.cfg.Handling.Logger.With("queue", c.cfg.Queue), nil, func(ctx context.Context) error {
		next = (next + 1) % len(c.servers)
		return c.connected(ctx, c.servers[next])
	})
}

// connected consumes over one connection.
func (c *Consumer) connected(ctx context.Context, to server) error {
	var running sync.WaitGroup
	defer running.Wait()
	l, err := dial(ctx, to, &c.conn, &running)
	if err != nil {
		return connectFault(err)
	}
	defer func() {
		_ = l.conn.CloseDeadline(time.Now().Add(c.conn.AckTimeout)) // it may be closed already
	}()
	ch, err := l.conn.Channel()
	if err != nil {
		return fmt.Errorf("rabbitmq: open a channel: %w", err)
	}
	if err := ch.Qos(c.cfg.Handling.MaxInFlight, 0, false); err != nil {
		return fmt.Errorf("rabbitmq: set the prefetch count: %w", err)
	}
	closed := ch.NotifyClose(make(chan *amqp091.Error, 1))
	if err := c.lag(ch); err != nil {
		return err
	}
	deliveries, err := ch.Consume(c.cfg.Queue, c.conn.Name, false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("rabbitmq: consume from queue %q: %w", c.cfg.Queue, err)
	}
	s := &session{Consumer: c, group: c.engine.Group()}
	err = s.receive(ctx, ch, deliveries, closed)
	s.group.Stop()
	// The consumer is not cancelled: the server would let the next consumer take later messages while our handlers
	// still run. The consumer ends with its connection, and the messages that it had and did not acknowledge go back in
	// order before another consumer gets more.
	running.Go(func() {
		for range deliveries { // until the connection ends
		}
	})
	s.group.Drain()
	return err
}

// lagEvery is the pause between queries for the number of messages in the queue.
const lagEvery = 15 * time.Second

// lag reports to the observer, if there is one, how many messages wait in the queue.
func (c *Consumer) lag(ch *amqp091.Channel) error {
	if !c.engine.Observed() {
		return nil
	}
	queue, err := ch.QueueDeclarePassive(c.cfg.Queue, false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("rabbitmq: ask how long queue %q is: %w", c.cfg.Queue, err)
	}
	c.engine.Lag(c.cfg.Queue, int64(queue.Messages))
	return nil
}

// session is the state of consuming over one connection.
type session struct {
	*Consumer
	group *lanes.Group
}

// receive takes messages until ctx ends.
func (s *session) receive(ctx context.Context, ch *amqp091.Channel,
	deliveries <-chan amqp091.Delivery, closed <-chan *amqp091.Error) error {
	look := time.NewTicker(lagEvery)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if err := s.lag(ch); err != nil {
				return err
			}
		case d, ok := <-deliveries:
			if !ok {
				select {
				case err := <-closed:
					if err != nil {
						return fmt.Errorf("rabbitmq: %w", err)
					}
				default:
				}
				return fmt.Errorf("rabbitmq: the server has ended the consumer of queue %q; was the queue deleted?", s.cfg.Queue)
			}
			s.take(d)
			continue
		case err := <-s.engine.Failed():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *session) take(from amqp091.Delivery) {
	d := &lanes.Delivery{Source: fmt.Sprintf("%s@%s", s.cfg.Queue,
		cmp.Or(from.MessageId, fmt.Sprintf("%d/%v", from.Timestamp.Unix(), from.RoutingKey)))}
	d.Message, d.Err = decode(&from)
	s.engine.Decode(d)
	d.Settle = func(o consume.Outcome, _ time.Duration) error {
		switch o {
		case consume.Done:
			return from.Ack(false)
		case consume.Rejected:
			return from.Nack(false, false)
		}
		return nil
	}
	s.group.Add(d)
}
