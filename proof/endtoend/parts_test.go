package endtoend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
)

// part is what a child process is told to be.
type part struct {
	Role   string // write, relay or consume
	Broker string // kafka, nats, rabbitmq or sqs
	Addr   string
	Source string // the writer's database
	Target string // the consumer's
	Events int    // when the writer may stop
	Static bool   // the member of Kafka's group keeps its name, so that no death of it costs a session's timeout
}

const (
	topic   = "transfers"
	keys    = 40
	writers = 4
	perTx   = 10
)

// ahead is how far the writer may be before the consumer: it has to be there as long as processes are killed.
// ElasticMQ looks at each message that waits for each that it hands out, so few may wait there.
func (p part) ahead() int64 {
	if p.Broker == "sqs" {
		return 400
	}
	return 20_000
}

// main is the child's. It ends when its parent does, however that happens.
func (p part) main() int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	run := map[string]func(context.Context) error{"write": p.write, "relay": p.relay, "consume": p.consume}[p.Role]
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, p.Role+":", err)
		return 1
	}
	return 0
}

// transfer is an event, and what it does.
type transfer struct {
	Account string `json:"account"`
	Cents   int    `json:"cents"`
}

// write commits rows together with their events until there are enough. Some transactions are rolled back.
func (p part) write(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, p.Source)
	if err != nil {
		return err
	}
	defer pool.Close()
	writer, err := outbox.NewWriter(outbox.WriterConfig{Sequences: true})
	if err != nil {
		return err
	}
	var before int
	if err := pool.QueryRow(ctx, `SELECT count(*) FROM booked`).Scan(&before); err != nil {
		return err
	}
	var booked, allowed atomic.Int64
	booked.Store(int64(before))
	pacing, stop := context.WithCancel(ctx)
	var pace sync.WaitGroup
	paceErr := make(chan error, 1)
	pace.Go(func() { paceErr <- p.pace(pacing, &allowed) })
	var all sync.WaitGroup
	errs := make([]error, writers)
	for i := range writers {
		all.Go(func() {
			for errs[i] == nil && booked.Load() < int64(p.Events) {
				if booked.Load() > allowed.Load() {
					time.Sleep(5 * time.Millisecond)
					continue
				}
				var n int
				n, errs[i] = p.book(ctx, pool, writer, i)
				booked.Add(int64(n))
			}
		})
	}
	all.Wait()
	stop()
	pace.Wait()
	return errors.Join(append(errs, <-paceErr)...)
}

// pace looks after how much may have been booked.
func (p part) pace(ctx context.Context, allowed *atomic.Int64) error {
	conn, err := pgx.Connect(context.WithoutCancel(ctx), p.Target)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for ctx.Err() == nil {
		var n int64
		if err := conn.QueryRow(context.WithoutCancel(ctx), progressSQL).Scan(&n); err != nil {
			return err
		}
		allowed.Store(n + p.ahead())
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

// progressSQL is about how many events were applied: a little more, for numbers of transactions that were rolled back
// are lost. To count them would take longer the more there are.
const progressSQL = `SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM applied_no_seq`

var errRolledBack = errors.New("rolled back")

// book is one transaction, and returns how many events it has committed. The keys of one writer are not those of the
// others, so that none waits.
func (p part) book(ctx context.Context, pool *pgxpool.Pool, writer *outbox.Writer, number int) (int, error) {
	msgs := make([]outbox.Message, perTx)
	ids, accounts, cents := make([]string, perTx), make([]string, perTx), make([]int, perTx)
	for i := range msgs {
		t := transfer{fmt.Sprintf("account-%d", number+writers*rand.N(keys/writers)), rand.N(100_000)}
		payload, err := json.Marshal(t)
		if err != nil {
			return 0, err
		}
		msgs[i] = outbox.Message{ID: outbox.NewID(), Topic: topic, Key: t.Account, Payload: payload}
		ids[i], accounts[i], cents[i] = msgs[i].ID.String(), t.Account, t.Cents
	}
	err := writer.InTx(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO booked (message_id, account, cents) SELECT * FROM unnest($1::text[]::uuid[], $2::text[], $3::int[])`, ids, accounts, cents); err != nil {
			return err
		}
		if _, err := writer.Write(ctx, tx, msgs...); err != nil {
			return err
		}
		if rand.N(20) == 0 {
			return errRolledBack
		}
		return nil
	})
	if errors.Is(err, errRolledBack) {
		return 0, nil
	}
	return perTx, err
}

func (p part) relay(ctx context.Context) error {
	conn, err := pgx.ParseConfig(p.Source)
	if err != nil {
		return err
	}
	source, err := polling.NewSnapshot(conn, "transfers", polling.SnapshotConfig{})
	if err != nil {
		return err
	}
	var b relay.Broker
	switch p.Broker {
	case "kafka":
		b, err = kafka.New(kafka.Config{Brokers: []string{p.Addr}})
	case "nats":
		b, err = nats.New(p.Addr, nats.Config{})
	case "rabbitmq":
		b, err = rabbitmq.New(p.Addr, rabbitmq.Config{})
	case "sqs":
		b, err = sqs.New(sqs.Config{Endpoint: p.Addr, AWS: anyone()})
	}
	if err != nil {
		return err
	}
	defer b.Close()
	r, err := relay.New(source, b, relay.Config{Name: "transfers"})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

func anyone() *aws.Config {
	return &aws.Config{Region: "eu-central-1", Credentials: credentials.NewStaticCredentialsProvider("x", "x", "")}
}

// consume applies events. The numbers of each key make their order independent of the broker's, which NATS
// doesn't keep when a consumer is killed.
func (p part) consume(ctx context.Context) error {
	cfg, err := pgxpool.ParseConfig(p.Target)
	if err != nil {
		return err
	}
	cfg.MaxConns = 10
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	box, err := inbox.New("accounts", inbox.Config{Gaps: inbox.GapWait})
	if err != nil {
		return err
	}
	handle := func(ctx context.Context, msg *outbox.Message) error {
		_, err := box.Handle(ctx, pool, msg, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
			var t transfer
			if err := json.Unmarshal(msg.Payload, &t); err != nil {
				return err
			}
			n, _, err := outbox.SequenceOf(msg)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `INSERT INTO applied (message_id, account, n, cents) VALUES ($1::text::uuid, $2, $3, $4)`,
				msg.ID.String(), t.Account, n, t.Cents)
			return err
		})
		return err
	}
	handling := consume.Config{Parallel: 8, MaxBackoff: time.Second}
	instance := ""
	if p.Static {
		instance = "the-one"
	}
	var c interface{ Run(context.Context) error }
	switch p.Broker {
	case "kafka":
		c, err = kafka.NewConsumer(kafka.Config{Brokers: []string{p.Addr}}, kafka.ConsumerConfig{
			Group: "accounts", Topics: []string{topic}, Instance: instance, SessionTimeout: 6 * time.Second, Handling: handling}, handle)
	case "nats":
		c, err = nats.NewConsumer(p.Addr, nats.Config{},
			nats.ConsumerConfig{Stream: "TRANSFERS", Durable: "accounts", AckWait: await.Expiry(2 * time.Second), Handling: handling},
			handle)
	case "rabbitmq":
		c, err = rabbitmq.NewConsumer(p.Addr, rabbitmq.Config{}, rabbitmq.ConsumerConfig{Queue: topic, Handling: handling}, handle)
	case "sqs":
		handling.MaxInFlight = 50 // ElasticMQ writes to the disk whenever a message is kept hidden
		c, err = sqs.NewConsumer(sqs.Config{Endpoint: p.Addr, AWS: anyone()},
			sqs.ConsumerConfig{Queue: topic + ".fifo", Visibility: await.Expiry(4 * time.Second), Handling: handling}, handle)
	}
	if err != nil {
		return err
	}
	return c.Run(ctx)
}
