// Package originals has the outboxes that people know from articles, as barely as they are written there
// and with their faults, as a baseline for comparisons. Don't use them.
//
// Where an article leaves something open, the choice that favours it is taken: statements are prepared,
// what is marked one row after the other within a transaction goes in one round trip, and the broker's
// client does not wait for more records when a program waits for its answer.
package originals

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Names of those that can be run.
const (
	Events       = "events"        // SKIP LOCKED for as long as the SELECT, then one message after the other
	LongTx       = "long-tx"       // one long transaction: SKIP LOCKED, publish, DELETE
	AdvisoryLock = "advisory-lock" // a session's advisory lock around SELECT, publish, DELETE
	ShortTx      = "short-tx"      // two short transactions with available_after
	Partitions   = "partitions"    // virtual partitions with offsets, by transaction id, as printed
	Repaired     = "repaired"      // the same with a condition that loses none
	SerialWrites = "serial-writes" // virtual partitions with offsets, by id
	Scheduled    = "scheduled"     // a scheduled job: a batch at once within a transaction
	Polling      = "polling"       // one message after the other within a transaction
	Statuses     = "statuses"      // pending, processing, processed
)

// Config says what an original works on.
type Config struct {
	Name     string
	Database string // URL
	Brokers  []string
	Topics   [2]string
	Batch    int // rows of a batch; Polling and Statuses take the ten of their articles
	Worker   int // which of several it is, from 0
}

// worker is a running original.
type worker struct {
	Config
	conn   *pgx.Conn
	client *kgo.Client
}

// Run connects, calls started and works until ctx ends, or until something fails: none of them goes on
// after an error here, so that a benchmark does not measure an outage.
func Run(ctx context.Context, cfg Config, started func()) error {
	turn, found := turns()[cfg.Name]
	if !found {
		return fmt.Errorf("there is no original %q", cfg.Name)
	}
	conn, err := pgx.Connect(ctx, cfg.Database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	opts := []kgo.Opt{kgo.SeedBrokers(cfg.Brokers...), kgo.ProducerLinger(0)}
	if cfg.Name == Partitions || cfg.Name == Repaired {
		opts = append(opts, kgo.TransactionalID(fmt.Sprintf("original-%d-%d", cfg.Worker, time.Now().UnixNano())))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.Close()
	w := &worker{cfg, conn, client}
	started()
	for {
		wait, err := turn(w, ctx)
		if ctx.Err() != nil {
			return nil // it was told to end
		}
		if err != nil {
			return fmt.Errorf("%s: %w", cfg.Name, err)
		}
		if wait == 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// turns are one pass of each: it returns how long the article sleeps after it.
func turns() map[string]func(*worker, context.Context) (time.Duration, error) {
	return map[string]func(*worker, context.Context) (time.Duration, error){
		Events: (*worker).events, LongTx: (*worker).longTx, AdvisoryLock: (*worker).advisoryLock, ShortTx: (*worker).shortTx,
		Partitions: (*worker).partitions, Repaired: (*worker).repaired, SerialWrites: (*worker).serialWrites,
		Scheduled: (*worker).scheduled, Polling: (*worker).polling, Statuses: (*worker).statuses,
	}
}

// message is what all of their tables have.
type message struct {
	id      any // as the table has it
	topic   string
	key     []byte
	payload []byte
	tx      uint64 // of a table with transaction ids
}

// read runs a query for id, topic, key and payload, and with withTx the transaction.
func read(ctx context.Context, q interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}, withTx bool, sql string, args ...any) ([]message, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m message, err error) {
		to := []any{&m.id, &m.topic, &m.key, &m.payload}
		if withTx {
			to = append(to, &m.tx)
		}
		return m, row.Scan(to...)
	})
}

func (m message) record() *kgo.Record {
	return &kgo.Record{Topic: m.topic, Key: m.key, Value: m.payload}
}

// publish sends a batch and waits until all of it is acknowledged.
func (w *worker) publish(ctx context.Context, batch ...message) (kgo.ProduceResults, error) {
	records := make([]*kgo.Record, len(batch))
	for i, m := range batch {
		records[i] = m.record()
	}
	results := w.client.ProduceSync(ctx, records...)
	return results, results.FirstErr()
}

func ids(batch []message) []int32 {
	all := make([]int32, len(batch))
	for i, m := range batch {
		all[i], _ = m.id.(int32) // it is int4 in these tables
	}
	return all
}
