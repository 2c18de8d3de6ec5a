package main

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
)

// outboxTopic is what the forwarder listens to: its table is watermill_outbox.
const outboxTopic = "outbox"

// watermillOffsets is watermill-sql's default schema, which keeps messages and remembers an offset.
func watermillOffsets(ctx context.Context, o options, to *kgo.Client, started func()) error {
	return forward(ctx, o, to, started, watermillsql.SubscriberConfig{
		ConsumerGroup:  "bench",
		SchemaAdapter:  watermillsql.DefaultPostgreSQLSchema{SubscribeBatchSize: o.batch},
		OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{},
	})
}

// watermillQueue is its schema of a queue, which deletes what was acknowledged.
func watermillQueue(ctx context.Context, o options, to *kgo.Client, started func()) error {
	return forward(ctx, o, to, started, watermillsql.SubscriberConfig{
		SchemaAdapter:  watermillsql.PostgreSQLQueueSchema{SubscribeBatchSize: o.batch},
		OffsetsAdapter: watermillsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
	})
}

// forward runs Watermill's forwarder, which is its outbox: from the table to the topic that the envelope of
// a message names.
func forward(ctx context.Context, o options, to *kgo.Client, started func(), cfg watermillsql.SubscriberConfig) error {
	pool, err := pgxpool.New(ctx, o.database)
	if err != nil {
		return err
	}
	defer pool.Close()
	cfg.InitializeSchema = true
	cfg.PollInterval = time.Millisecond // its default is a second
	subscriber, err := watermillsql.NewSubscriber(watermillsql.BeginnerFromPgx(pool), cfg, watermill.NopLogger{})
	if err != nil {
		return err
	}
	f, err := forwarder.NewForwarder(subscriber, kafkaPublisher{to}, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: outboxTopic})
	if err != nil {
		return err
	}
	go func() { // it ends when Run does
		select {
		case <-f.Running():
			started()
		case <-ctx.Done():
		}
	}()
	return errors.Join(f.Run(ctx), f.Close())
}

// kafkaPublisher gives Watermill the client of the other contenders.
type kafkaPublisher struct{ client *kgo.Client }

var _ message.Publisher = kafkaPublisher{}

// Publish waits until all are acknowledged.
func (p kafkaPublisher) Publish(topic string, messages ...*message.Message) error {
	records := make([]*kgo.Record, len(messages))
	for i, m := range messages {
		records[i] = &kgo.Record{Topic: topic, Key: []byte(m.Metadata["key"]), Value: m.Payload}
	}
	return p.client.ProduceSync(context.Background(), records...).FirstErr()
}

func (p kafkaPublisher) Close() error { return nil }
