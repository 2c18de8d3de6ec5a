package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/proof/rig"
)

// write measures transactions that insert a business row and a message.
func (r *run) write(ctx context.Context) (Result, error) {
	result := r.result(map[string]any{"writers": r.Writers})
	result.Relays = 0
	if err := r.freshDatabase(ctx); err != nil {
		return result, err
	}
	conn, err := pgx.Connect(ctx, r.url)
	if err != nil {
		return result, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx,
		"CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL)"); err != nil {
		return result, err
	}
	conns := make([]*pgx.Conn, r.Writers)
	for i := range conns {
		if conns[i], err = pgx.Connect(ctx, r.url); err != nil {
			return result, err
		}
		defer conns[i].Close(context.WithoutCancel(ctx))
	}

	backend := conn.PgConn().PID()
	before := rig.DatabaseCPU(backend)
	counts := make([]int, r.Writers)
	histograms := make([]*hdrhistogram.Histogram, r.Writers)
	errs := make([]error, r.Writers)
	began := time.Now()
	deadline := began.Add(r.For)
	var writing sync.WaitGroup
	for w, conn := range conns {
		histograms[w] = newHistogram()
		writing.Go(func() {
			payload := check.Encode(nil, uint32(w), 1, r.Bytes)
			for start := time.Now(); start.Before(deadline); counts[w]++ {
				if errs[w] = r.transaction(ctx, conn, keyName(w), payload); errs[w] != nil {
					return
				}
				end := time.Now()
				record(histograms[w], end.Sub(start))
				start = end
			}
		})
	}
	writing.Wait()
	result.Seconds = time.Since(began).Seconds()
	if err := errors.Join(errs...); err != nil {
		return result, err
	}
	result.DatabaseCPU = rig.DatabaseCPU(backend) - before
	all := newHistogram()
	for w := range conns {
		result.Messages += counts[w]
		all.Merge(histograms[w])
	}
	result.Rate = float64(result.Messages) / result.Seconds
	result.P50, result.P95, result.P99, result.Max = quantiles(all)

	var orders, messages int
	if err := conn.QueryRow(ctx, "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox.messages)").Scan(&orders,
		&messages); err != nil {
		return result, err
	}
	want := result.Messages
	if r.name == Without {
		want = 0
	}
	if orders != result.Messages {
		return result, fmt.Errorf("%d transactions left %d business rows", result.Messages, orders)
	}
	result.Lost, result.Phantom = uint64(max(want-messages, 0)), uint64(max(messages-want, 0))
	return result, nil
}

// transaction is what a service does: its own row, and beside it a message.
func (r *run) transaction(ctx context.Context, conn *pgx.Conn, key string, payload []byte) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO orders (body) VALUES ($1)", payload)
		if err != nil {
			return err
		}
		switch r.name {
		case Insert:
			_, err = tx.Exec(ctx, "INSERT INTO outbox.messages (topic, key, event_type, payload) VALUES ($1, $2, $3, $4)",
				r.topics[0], key, eventType, payload)
		case Writer:
			var writer outbox.Writer
			_, err = writer.Write(ctx, tx, outbox.Message{Topic: r.topics[0], Key: key, EventType: eventType, Payload: payload})
		}
		return err
	})
}
