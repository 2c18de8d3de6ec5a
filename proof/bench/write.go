package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/check"
)

// WriteConfig says what to measure. The zero value means the stated defaults. There is no broker.
type WriteConfig struct {
	Common
	For     time.Duration // of each run. Default 5 s
	Writers int           // connections that write at once. Default 4
	Bytes   int           // payload of each message. Default 256
}

func (c *WriteConfig) prepare() error {
	faults := c.Common.defaults(Insert, Writer, Without)
	setDefault(&c.For, 5*time.Second)
	setDefault(&c.Writers, 4)
	setDefault(&c.Bytes, 256)
	need := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	need(c.For > 0, "a duration of %v: it must be positive", c.For)
	need(c.Writers >= 1 && c.Writers <= 1000, "%d writers: want 1 to 1,000", c.Writers)
	need(c.Bytes >= minBytes && c.Bytes <= maxBytes, "%d bytes: want %d to %d", c.Bytes, minBytes, maxBytes)
	return errors.Join(faults...)
}

// Validate reports everything that is wrong with c at once.
func (c WriteConfig) Validate() error {
	return c.prepare()
}

// Write measures transactions that insert a business row and a message. With an error it returns the
// results until then.
func Write(ctx context.Context, cfg WriteConfig) ([]Result, error) {
	if err := cfg.prepare(); err != nil {
		return nil, err
	}
	b, err := openBed(ctx, &cfg.Common, false, false)
	if err != nil {
		return nil, err
	}
	defer b.close()
	var results []Result
	for round := range cfg.Rounds {
		first := len(results)
		for _, name := range cfg.order(round) {
			r, err := cfg.once(ctx, b, name)
			if err != nil {
				return results, fmt.Errorf("%s, round %d: %w", name, round+1, err)
			}
			r.Round = round + 1
			cfg.say("round %d of %d: %s, %.0f transactions/s", r.Round, cfg.Rounds, name, r.Rate)
			results = append(results, r)
		}
		compare(results[first:])
	}
	return results, nil
}

func (c *WriteConfig) once(ctx context.Context, b *bed, name string) (Result, error) {
	r := Result{Bench: "write", Contender: name, Bytes: c.Bytes, Settings: map[string]string{"writers": strconv.Itoa(c.Writers)}}
	b.describe(&r)
	if err := b.freshDatabase(ctx); err != nil {
		return r, err
	}
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return r, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL)"); err != nil {
		return r, err
	}
	conns := make([]*pgx.Conn, c.Writers)
	for i := range conns {
		if conns[i], err = pgx.Connect(ctx, b.url); err != nil {
			return r, err
		}
		defer conns[i].Close(context.WithoutCancel(ctx))
	}

	backend := conn.PgConn().PID()
	before := databaseCPU(backend)
	counts := make([]int, c.Writers)
	histograms := make([]*hdrhistogram.Histogram, c.Writers)
	errs := make([]error, c.Writers)
	began := time.Now()
	deadline := began.Add(c.For)
	var writing sync.WaitGroup
	for w, conn := range conns {
		histograms[w] = newHistogram()
		writing.Go(func() {
			payload := check.Encode(nil, uint32(w), 1, c.Bytes)
			for start := time.Now(); start.Before(deadline); counts[w]++ {
				if errs[w] = c.transaction(ctx, conn, name, b.topic, keyName(w), payload); errs[w] != nil {
					return
				}
				end := time.Now()
				record(histograms[w], end.Sub(start))
				start = end
			}
		})
	}
	writing.Wait()
	r.Seconds = time.Since(began).Seconds()
	if err := errors.Join(errs...); err != nil {
		return r, err
	}
	r.DatabaseCPU = databaseCPU(backend) - before
	all := newHistogram()
	for w := range conns {
		r.Messages += counts[w]
		all.Merge(histograms[w])
	}
	r.Rate = float64(r.Messages) / r.Seconds
	r.P50, r.P95, r.P99, r.Max = quantiles(all)

	var orders, messages int
	if err := conn.QueryRow(ctx, "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox.messages)").Scan(&orders, &messages); err != nil {
		return r, err
	}
	want := r.Messages
	if name == Without {
		want = 0
	}
	if orders != r.Messages {
		return r, fmt.Errorf("%d transactions left %d business rows", r.Messages, orders)
	}
	r.Lost, r.Phantom = uint64(max(want-messages, 0)), uint64(max(messages-want, 0))
	return r, nil
}

// transaction is what a service does: its own row, and beside it a message.
func (c *WriteConfig) transaction(ctx context.Context, conn *pgx.Conn, name, topic, key string, payload []byte) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO orders (body) VALUES ($1)", payload)
		if err != nil {
			return err
		}
		switch name {
		case Insert:
			_, err = tx.Exec(ctx, "INSERT INTO outbox.messages (topic, key, event_type, payload) VALUES ($1, $2, $3, $4)", topic, key, eventType, payload)
		case Writer:
			var writer outbox.Writer
			_, err = writer.Write(ctx, tx, outbox.Message{Topic: topic, Key: key, EventType: eventType, Payload: payload})
		}
		return err
	})
}
