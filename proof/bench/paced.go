package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/proof/rig"
	"github.com/pgoutbox/outbox/relay"
)

// paced is a load whose times are fixed beforehand: what is late does not make later messages later, so
// no slow moment hides the ones it would have delayed.
type paced struct {
	Rate    int           `json:"rate"` // messages per second on average
	For     time.Duration `json:"for"`
	Writers int           `json:"writers"`
	Keys    int           `json:"keys"` // of each writer
	Bytes   int           `json:"bytes"`
	Seed    uint64        `json:"seed"`
	Plain   bool          `json:"plain,omitempty"` // into the floor's table
}

// times are when messages are due, after the beginning: at random, as independent requests come, so that
// they don't fall into step with a relay's polling. The same seed gives the same times.
func (l *paced) times() []time.Duration {
	random := rand.New(rand.NewPCG(l.Seed, uint64(l.Rate)))
	var all []time.Duration
	for at := 0.0; ; {
		at += random.ExpFloat64() / float64(l.Rate)
		due := time.Duration(at * float64(time.Second))
		if due >= l.For {
			return all
		}
		all = append(all, due)
	}
}

// written is one message of a load.
type written struct {
	Key       uint32
	Seq       uint64
	Due       time.Duration // after the beginning
	Committed int64         // when COMMIT had returned, in nanoseconds since 1970
	Began     int64         // when the load began, likewise
}

// loadResult is what a load tells when it is over.
type loadResult struct {
	Written []written
	Err     string
}

// runLoad connects the writers, waits for begin, writes, and tells what it wrote. With a broker in o, a
// relay runs beside the writers, woken by them, and goes on until ctx ends.
func runLoad(ctx context.Context, o order, begin <-chan struct{}, out io.Writer, logger *slog.Logger) error {
	var cfg outbox.WriterConfig
	var delivering sync.WaitGroup
	var delivery error
	ctx, cancel := context.WithCancel(ctx)
	defer delivering.Wait()
	defer cancel()
	if o.Broker != "" {
		waker := relay.NewWaker()
		cfg.Wake = waker.Wake
		delivering.Go(func() { delivery = runGroup(ctx, o, waker, logger) })
	}
	writer, err := outbox.NewWriter(cfg)
	if err != nil {
		return err
	}
	conns := make([]*pgx.Conn, o.Load.Writers)
	for i := range conns {
		if conns[i], err = pgx.Connect(ctx, o.Database); err != nil {
			return err
		}
		defer conns[i].Close(context.WithoutCancel(ctx))
	}
	if o.Broker == "" {
		logger.Info("started")
	}
	select {
	case <-begin:
	case <-ctx.Done():
		return ctx.Err()
	}
	result := loadResult{}
	if result.Written, err = o.Load.write(ctx, conns, writer, o.Topic); err != nil {
		result.Err = err.Error()
	}
	if err := tell(out, &result); err != nil {
		return err
	}
	<-ctx.Done()
	delivering.Wait()
	return delivery
}

// write performs the load. The next writer that is free takes the next message when it is due.
func (l *paced) write(ctx context.Context, conns []*pgx.Conn, writer *outbox.Writer, topic string) ([]written, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	times := l.times()
	due := make(chan time.Duration, len(times))
	parts := make([][]written, len(conns))
	began := time.Now()
	var writing sync.WaitGroup
	for w, conn := range conns {
		writing.Go(func() {
			put := l.put(conn, writer, topic)
			seqs := make([]uint64, l.Keys)
			payload := make([]byte, 0, l.Bytes)
			for n := 0; ; n++ {
				at, more := <-due
				if !more || ctx.Err() != nil {
					return
				}
				mine := n % l.Keys
				key := mine*l.Writers + w // no other writer's, so that its numbers are in the order of commits
				seqs[mine]++
				payload = check.Encode(payload[:0], uint32(key), seqs[mine], l.Bytes)
				if err := put(ctx, keyName(key), payload); err != nil {
					cancel(fmt.Errorf("write: %w", err))
					return
				}
				parts[w] = append(parts[w], written{uint32(key), seqs[mine], at, time.Now().UnixNano(), began.UnixNano()})
			}
		})
	}
	for _, at := range times {
		if rig.Pause(ctx, time.Until(began.Add(at))) != nil {
			break
		}
		due <- at
	}
	close(due)
	writing.Wait()
	var all []written
	for _, part := range parts {
		all = append(all, part...)
	}
	if err := context.Cause(ctx); err != nil {
		return all, err
	}
	return all, nil
}

// put returns how one message is written, in a transaction of its own.
func (l *paced) put(conn *pgx.Conn, writer *outbox.Writer, topic string) func(ctx context.Context, key string, payload []byte) error {
	if l.Plain {
		return func(ctx context.Context, key string, payload []byte) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO plain (key, payload) VALUES ($1, $2)", key, payload)
				return err
			})
		}
	}
	return func(ctx context.Context, key string, payload []byte) error {
		return writer.InTx(ctx, conn, func(tx pgx.Tx) error {
			_, err := writer.Write(ctx, tx, outbox.Message{Topic: topic, Key: key, EventType: eventType, Payload: payload})
			return err
		})
	}
}
