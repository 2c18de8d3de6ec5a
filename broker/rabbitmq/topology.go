package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/rabbitmq/amqp091-go"
)

// prepare checks the exchange on a new link, and creates what the configuration asks for and is missing.
func (b *Broker) prepare(ctx context.Context, l *link) error {
	if b.cfg.exchange.Constant() && b.cfg.Exchange != "" {
		err := l.probe(ctx, b.cfg.Exchange)
		if isCode(err, amqp091.NotFound) && b.cfg.CreateExchange != "" {
			err = l.declare(ctx, func(ch *amqp091.Channel) error {
				return ch.ExchangeDeclare(b.cfg.Exchange, b.cfg.CreateExchange, true, false, false, false, nil)
			})
			if err != nil {
				return fmt.Errorf("rabbitmq: create exchange %q: %w", b.cfg.Exchange, err)
			}
			b.cfg.Logger.Info("created exchange", "exchange", b.cfg.Exchange, "kind", b.cfg.CreateExchange)
		}
		if err != nil {
			return err
		}
		l.exists(b.cfg.Exchange)
	}
	for i := range b.cfg.CreateQueues {
		if err := b.prepareQueue(ctx, l, &b.cfg.CreateQueues[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *Broker) prepareQueue(ctx context.Context, l *link, q *Queue) error {
	err := l.declare(ctx, func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
		return err
	})
	if !isCode(err, amqp091.NotFound) {
		if err != nil {
			return fmt.Errorf("rabbitmq: look for queue %q: %w", q.Name, err)
		}
		return nil
	}
	args := amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
	if q.MaxLength > 0 {
		args[amqp091.QueueMaxLenArg] = q.MaxLength
		args[amqp091.QueueOverflowArg] = amqp091.QueueOverflowRejectPublish
	}
	err = l.declare(ctx, func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare(q.Name, true, false, false, false, args)
		for _, binding := range q.Bindings {
			if err == nil {
				err = ch.QueueBind(q.Name, binding, b.cfg.Exchange, false, nil)
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("rabbitmq: create queue %q: %w", q.Name, err)
	}
	b.cfg.Logger.Info("created queue", "queue", q.Name, "bindings", q.Bindings)
	return nil
}

// declare runs f on a channel of its own, because the answer no closes the channel.
func (l *link) declare(ctx context.Context, f func(ch *amqp091.Channel) error) error {
	return l.rpc(ctx, func() error {
		ch, err := l.conn.Channel()
		if err != nil {
			return err
		}
		closed := ch.NotifyClose(make(chan *amqp091.Error, 1))
		if err = f(ch); err == nil {
			return ch.Close()
		}
		if errors.Is(err, amqp091.ErrClosed) { // the answer was here before f had its next question
			if answer := <-closed; answer != nil {
				err = answer
			}
		}
		return errors.Join(err, ignoreClosed(ch.Close()))
	})
}

// ignoreClosed ignores the error that a channel is closed already.
func ignoreClosed(err error) error {
	if errors.Is(err, amqp091.ErrClosed) {
		return nil
	}
	return err
}

// probe checks that the server answers and that the exchange exists, if it has a name.
func (l *link) probe(ctx context.Context, exchange string) error {
	err := l.declare(ctx, func(ch *amqp091.Channel) error {
		if exchange == "" {
			return nil
		}
		// The kind is not compared, but must be given.
		return ch.ExchangeDeclarePassive(exchange, amqp091.ExchangeTopic, true, false, false, false, nil)
	})
	if isCode(err, amqp091.NotFound) {
		return fmt.Errorf("rabbitmq: exchange %q does not exist: create it, for example by: rabbitmqadmin declare "+
			"exchange name=%s type=topic durable=true, or set CreateExchange: %w", exchange, exchange, err)
	}
	if err != nil {
		return fmt.Errorf("rabbitmq: the server does not answer: %w", err)
	}
	return nil
}

// mayWrite checks that the user may publish to an exchange, by a transaction that is rolled back: the server checks the
// right when a message comes, and puts nothing into a queue before a commit. It does ask the exchange where the message
// goes: one of a plugin that keeps what it is asked about (x-recent-history) keeps an empty message. What the user may
// not do for one routing key alone, the messages that have it are told.
func (l *link) mayWrite(ctx context.Context, exchange string) error {
	err := l.declare(ctx, func(ch *amqp091.Channel) error {
		if err := ch.Tx(); err != nil {
			return err
		}
		if err := ch.PublishWithContext(ctx, exchange, "", false, false, amqp091.Publishing{}); err != nil {
			return err
		}
		return ch.TxRollback()
	})
	var answer *amqp091.Error
	if errors.As(err, &answer) && answer.Code == amqp091.AccessRefused && namesTopic.FindString(answer.Reason) == "" {
		return outbox.TopicUnavailable(fmt.Errorf("rabbitmq: exchange %q: not permitted: %w; %s", exchange, err, advice(answer)))
	}
	return nil // a server without transactions has been asked already whether it answers
}

func isCode(err error, code int) bool {
	var answer *amqp091.Error
	return errors.As(err, &answer) && answer.Code == code
}

// find checks that an exchange exists, once per link. A message to one that doesn't exist would close the channel, with
// everything in flight on it.
func (l *link) find(ctx context.Context, exchange string) error {
	if exchange == "" {
		return nil
	}
	l.mu.Lock()
	_, found := l.exchanges[exchange]
	l.mu.Unlock()
	if found {
		return nil
	}
	err := l.probe(ctx, exchange)
	switch {
	case err == nil:
		l.exists(exchange)
	case isCode(err, amqp091.NotFound):
		return outbox.TopicUnavailable(err)
	default:
		return outbox.Unavailable(err)
	}
	return nil
}

func (l *link) exists(exchange string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exchanges[exchange] = struct{}{}
}

// refusalOf returns a known refusal of that address: an error, and whether to test it again.
func (l *link) refusalOf(exchange, routingKey string) (err error, test bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.refused) == 0 {
		return nil, false
	}
	for _, a := range [...]address{{exchange, ""}, {exchange, routingKey}} {
		if r := l.refused[a]; r != nil {
			return r.err, time.Now().After(r.until)
		}
	}
	return nil, false
}

// allowed removes a refusal.
func (l *link) allowed(exchange, routingKey string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.refused, address{exchange, ""})
	delete(l.refused, address{exchange, routingKey})
}
