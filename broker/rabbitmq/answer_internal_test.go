package rabbitmq

import (
	"testing"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/rabbitmq/amqp091-go"
)

func TestALimitIsKnownThoughTheServerNamesNone(t *testing.T) {
	t.Parallel()
	c := &call{flight: []flying{{body: 10}, {body: 5000}, {body: 300}}, landed: 1}
	for _, test := range []struct {
		said  amqp091.Error
		limit int
		known bool
	}{
		{amqp091.Error{Code: amqp091.PreconditionFailed,
			Reason: "PRECONDITION_FAILED - message size 5000 is larger than configured max size 1024"}, 1024, true},
		{amqp091.Error{Code: amqp091.PreconditionFailed, Reason: "PRECONDITION_FAILED - message too large"}, 4999, true},
		{amqp091.Error{Code: amqp091.ContentTooLarge, Reason: "CONTENT_TOO_LARGE"}, 4999, true},
		{amqp091.Error{Code: amqp091.PreconditionFailed, Reason: "PRECONDITION_FAILED - unknown delivery tag 7"}, 0, false},
	} {
		if limit, known := c.limit(&test.said); limit != test.limit || known != test.known {
			t.Errorf("%s: %d, %v, want %d, %v", test.said.Reason, limit, known, test.limit, test.known)
		}
	}
}

func TestARefusalThatComesBeforeTheNextQuestionIsTold(t *testing.T) {
	t.Parallel()
	b, err := New(servers.TestRabbitMQ(t).URL(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	l, err := b.shared.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = l.declare(t.Context(), func(ch *amqp091.Channel) error {
		if err := ch.PublishWithContext(t.Context(), "missing", "", false, false, amqp091.Publishing{}); err != nil {
			return err
		}
		await.Until(t, "the channel is closed", ch.IsClosed)
		return ch.TxRollback()
	})
	if !isCode(err, amqp091.NotFound) {
		t.Errorf("error %v", err)
	}
}
