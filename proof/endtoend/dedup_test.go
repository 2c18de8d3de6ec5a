package endtoend

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped"
)

// Two rows of an author's table with one idempotency key are one message for a FIFO queue. The message behind them in
// their group shows that no second one came before it.
func TestRowsWithOneIdempotencyKeyAreOneMessageOfAFIFOQueue(t *testing.T) {
	t.Parallel()
	const queue = "order_create.fifo"
	server := servers.OwnElasticMQ(t, servers.ElasticMQConfig{Queues: []string{queue}})
	db := testdb.New(t)
	db.Exec(`CREATE SCHEMA p2p; CREATE TABLE p2p.transaction_outbox (
		id uuid DEFAULT gen_random_uuid() NOT NULL PRIMARY KEY, idempotency_key TEXT NOT NULL, transaction_type TEXT NOT NULL,
		transaction_ref_id TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'pending', payload JSONB NOT NULL, create_time TIMESTAMPTZ DEFAULT now(),
		processed_time TIMESTAMPTZ, last_attempt_time TIMESTAMPTZ, retry_count INT DEFAULT 0, error_message TEXT)`)
	for i, key := range []string{"a", "a", "b"} {
		db.Exec(`INSERT INTO p2p.transaction_outbox (idempotency_key, transaction_type, transaction_ref_id, payload) VALUES ($1, 'order_create', 'ref', to_jsonb($2::int))`, key, i+1)
	}
	preset, _ := mapping.FindPreset("transaction_outbox")
	source, err := mapped.Open(mapping.Lease, db.Config(), preset.Mapping, mapped.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := sqs.New(sqs.Config{Queue: "{topic}.fifo", Endpoint: server.URL(), AWS: anyone()})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	r, err := relay.New(source, b, relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var got []string
	last := make(chan struct{})
	c, err := sqs.NewConsumer(sqs.Config{Endpoint: server.URL(), AWS: anyone()},
		sqs.ConsumerConfig{Queue: queue}, func(_ context.Context, m *outbox.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if got = append(got, string(m.Payload)); string(m.Payload) == "3" {
				close(last)
			}
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	ended := make(chan error, 2)
	go func() { ended <- r.Run(ctx) }()
	go func() { ended <- c.Run(ctx) }()
	select {
	case <-last:
	case <-ctx.Done():
	}
	for db.Value(`SELECT count(*) FROM p2p.transaction_outbox WHERE status = 'processed'`) != "3" && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(got, []string{"1", "3"}) {
		t.Errorf("the queue has %v, want one message for the key", got)
	}
}
