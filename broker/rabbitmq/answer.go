package rabbitmq

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/search"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/rabbitmq/amqp091-go"
)

// unroutable returns why a message came back.
func unroutable(r *amqp091.Return) error {
	if r.Exchange == "" {
		return outbox.TopicUnavailable(fmt.Errorf("rabbitmq: queue %q does not exist: create it, as a durable quorum queue",
			printed.Short(r.RoutingKey)))
	}
	return outbox.TopicUnavailable(fmt.Errorf("rabbitmq: no queue is bound to exchange %q for routing key %q (%s): bind one",
		r.Exchange, printed.Short(r.RoutingKey), r.ReplyText))
}

// The texts by which the server closes a channel. They are the same from RabbitMQ 3.8 to 4.
var (
	namesExchange = regexp.MustCompile(`exchange '([^']*)'`)
	namesTopic    = regexp.MustCompile(`topic '(.*)' in exchange`)
	namesLimit    = regexp.MustCompile(`message size \d+.* larger than .*?(\d+)`)
)

// closed finds out why a channel ended: the server closes it because of a message that it refuses, and names that
// message only in words. It settles the messages that were certainly refused; the returned cause is for the rest.
func (c *call) closed(l *link, ch *channel) error {
	if !l.Usable() { // the channel ended with the connection
		<-l.Dead
		return l.Cause()
	}
	answer := ch.reason()
	if answer == nil {
		return errors.New("rabbitmq: the channel is closed")
	}
	cause := fmt.Errorf("rabbitmq: the server closed the channel: %w", answer)
	exchange := ""
	if found := namesExchange.FindStringSubmatch(answer.Reason); found != nil {
		exchange = found[1]
	}
	switch answer.Code {
	case amqp091.PreconditionFailed, amqp091.ContentTooLarge:
		if limit, ok := c.limit(answer); ok {
			l.learnLimit(limit)
			c.refuseLarger(limit)
		}
	case amqp091.NotFound:
		l.gone(exchange)
	case amqp091.AccessRefused:
		cause = fmt.Errorf("%w; %s", cause, advice(answer))
		if topic := namesTopic.FindStringSubmatch(answer.Reason); topic != nil {
			l.refuse(address{exchange, topic[1]}, outbox.TopicUnavailable(cause))
		} else if !c.encoder.exchange.Constant() {
			l.refuse(address{exchange, ""}, outbox.TopicUnavailable(cause))
		}
	}
	return cause
}

// advice says what to do about a refused access to an exchange.
func advice(answer *amqp091.Error) string {
	if strings.Contains(answer.Reason, "internal exchange") {
		return "an internal exchange takes messages from other exchanges only: publish to one that is bound to it, or declare it anew " +
			"without internal"
	}
	return "allow the user to write to it"
}

// limit returns the most bytes of a message, if the server has closed the channel because one has more. If it doesn't
// name a number, the largest message in flight has more than that: it has at least as many as the one that was refused.
func (c *call) limit(answer *amqp091.Error) (int, bool) {
	if found := namesLimit.FindStringSubmatch(answer.Reason); found != nil {
		if limit, err := strconv.Atoi(found[1]); err == nil {
			return limit, true
		}
	}
	if answer.Code != amqp091.ContentTooLarge && !search.OfSize(answer.Reason) {
		return 0, false
	}
	largest := 1
	for _, f := range c.flight[c.landed:] {
		largest = max(largest, f.body)
	}
	return largest - 1, true
}

// reason returns why the server closed the channel, nil if it didn't. It waits for the library, which marks a channel
// as closed before it says why.
func (ch *channel) reason() *amqp091.Error { return <-ch.closed }

// refuseLarger settles the messages in flight that are larger than the server will ever accept.
func (c *call) refuseLarger(limit int) {
	for _, f := range c.flight[c.landed:] {
		if c.Taken(f.index) && f.body > limit {
			c.Settle(f.index, overLimit(f.body, limit))
		}
	}
}

func overLimit(size, limit int) error {
	return refuse("a body of %d bytes is larger than the server's max_message_size of %d", size, limit)
}

func (l *link) learnLimit(limit int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mostBytes = limit
}

// tooLarge refuses a body that is known to be larger than the server accepts.
func (l *link) tooLarge(size int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mostBytes > 0 && size > l.mostBytes {
		return overLimit(size, l.mostBytes)
	}
	return nil
}

// gone records that an exchange may not exist any more.
func (l *link) gone(exchange string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.exchanges, exchange)
}

// refuse remembers that publishing to an address is not allowed. Messages to other addresses continue.
func (l *link) refuse(to address, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused[to] = &refusal{err: err, until: time.Now().Add(refusalTime)}
}
