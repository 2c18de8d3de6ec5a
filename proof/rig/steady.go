package rig

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/check"
)

// Steady writes messages at an even rate, each in a transaction of its own, and reports them to a checker and a meter.
type Steady struct {
	URL    string
	Rate   int    // messages a second
	Keys   uint32 // they get them in turn
	Prefix string // of the keys' names
}

// Write commits messages until stop is closed, and counts them.
func (w Steady) Write(ctx context.Context, stop <-chan struct{}, checker *check.Checker, meter *Meter[check.ID]) (n uint64, err error) {
	conn, err := pgx.Connect(ctx, w.URL)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	tick := time.NewTicker(time.Second / time.Duration(w.Rate))
	defer tick.Stop()
	for ; ; n++ {
		select {
		case <-stop:
			return n, nil
		case <-ctx.Done():
			return n, context.Cause(ctx)
		case <-tick.C:
		}
		key, seq := uint32(n%uint64(w.Keys)), n/uint64(w.Keys)+1
		meter.Wrote(check.ID{Key: key, Seq: seq})
		checker.Committed(key, seq)
		const insert = "INSERT INTO outbox.messages (topic, key, payload) VALUES ('t', $1, $2)"
		if _, err := conn.Exec(ctx, insert, w.Prefix+strconv.Itoa(int(key)), check.Encode(nil, key, seq, 200)); err != nil {
			return n, err
		}
	}
}
