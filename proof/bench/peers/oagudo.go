package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/oagudo/outbox"
	"github.com/twmb/franz-go/pkg/kgo"
)

// oagudo is the reader of oagudo/outbox.
func oagudo(ctx context.Context, o options, to *kgo.Client, started func()) error {
	cfg, err := pgx.ParseConfig(o.database)
	if err != nil {
		return err
	}
	cfg.RuntimeParams["timezone"] = "UTC" // it compares a timestamp with a zone with UTC's without
	db := stdlib.OpenDB(*cfg)
	defer db.Close()
	reader := outbox.NewReader(outbox.NewDBContext(db, outbox.SQLDialectPostgres), publisher{to},
		outbox.WithInterval(time.Millisecond), // its default is 10 s
		outbox.WithReadBatchSize(o.batch),
		outbox.WithDeleteBatchSize(o.batch))
	reader.Start()
	started()
	select {
	case err = <-reader.Errors(): // no benchmark of an outage
	case <-ctx.Done():
		err = nil
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if stopErr := reader.Stop(closing); stopErr != nil && err == nil {
		return fmt.Errorf("stop: %w", stopErr)
	}
	return err
}

type publisher struct{ client *kgo.Client }

var _ outbox.MessagePublisher = publisher{}

// Publish finds out from the metadata where to.
func (p publisher) Publish(ctx context.Context, m *outbox.Message) error {
	var to struct{ Topic, Key string }
	if err := json.Unmarshal(m.Metadata, &to); err != nil {
		return fmt.Errorf("read the metadata: %w", err)
	}
	return p.client.ProduceSync(ctx, &kgo.Record{Topic: to.Topic, Key: []byte(to.Key), Value: m.Payload}).FirstErr()
}
