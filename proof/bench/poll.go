package main

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/jackc/pgx/v5"
)

// plainSQL is the table that the floor of a latency polls. It is not the outbox: that has no index on id
// alone, which this kind of reading needs.
const plainSQL = `CREATE TABLE plain (
	id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	message_id uuid NOT NULL DEFAULT gen_random_uuid(),
	key        text NOT NULL,
	payload    bytea NOT NULL
)`

// pollEvery is the beat of the barest poll.
const pollEvery = time.Millisecond

// runPoll is the floor of a latency: every millisecond it asks for the rows with higher ids and hands them
// to the broker's client. It keeps no cursor, waits for no acknowledgement, and loses what commits after a
// higher id has been read.
func runPoll(ctx context.Context, o order, started func()) error {
	conn, err := pgx.Connect(ctx, o.Database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return runFloor(ctx, o, 0, started, func(out pipe, free chan *page) error { return poll(ctx, conn, out, free) })
}

func poll(ctx context.Context, conn *pgx.Conn, out pipe, free chan *page) error {
	beat := time.NewTicker(pollEvery)
	defer beat.Stop()
	pg, err := take(ctx, free)
	if err != nil {
		return err
	}
	for last := int64(0); ; {
		rows, err := conn.Query(ctx, "SELECT id, message_id, key, payload FROM plain WHERE id > $1 ORDER BY id LIMIT 1000", last)
		if err != nil {
			return err
		}
		for rows.Next() {
			raw := rows.RawValues()
			if !pg.add(raw[1], raw[2], raw[3]) {
				break // the rest comes with the next poll
			}
			last = int64(binary.BigEndian.Uint64(raw[0]))
		}
		rows.Close()
		if err := rows.Err(); err != nil {
			return err
		}
		if len(pg.rows) > 0 {
			if err := out.send(ctx, pg); err != nil {
				return err
			}
			if pg, err = take(ctx, free); err != nil {
				return err
			}
		}
		select {
		case <-beat.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
