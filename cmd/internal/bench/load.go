package bench

import (
	"context"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/schema"
)

// topic is where everything goes; the target creates it afresh for each run.
const topic = "bench"

// rowsPerTransaction is how the backlog came about.
const rowsPerTransaction = 100

// load fills the outbox from four writers at once, each with its own share of the keys, and tells the
// checkers what was committed.
func load(ctx context.Context, url string, cfg DrainConfig, committed func(key uint32, seq uint64)) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := schema.Up(ctx, conn, schema.UpConfig{}); err != nil {
		return err
	}
	const writers = 4
	group, loading := errgroup.WithContext(ctx)
	for w := range writers {
		group.Go(func() error {
			conn, err := pgx.Connect(loading, url)
			if err != nil {
				return err
			}
			defer conn.Close(context.WithoutCancel(ctx))
			// The load is not what is measured.
			if _, err := conn.Exec(loading, "SET synchronous_commit = off"); err != nil {
				return err
			}
			return fill(loading, conn, cfg, w, writers, committed)
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("load the outbox: %w", err)
	}
	// What a drain meets in production: statistics and a visibility map that are not brand new.
	if _, err := conn.Exec(ctx, "VACUUM ANALYZE outbox.messages"); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "CHECKPOINT")
	return err
}

func fill(ctx context.Context, conn *pgx.Conn, cfg DrainConfig, w, writers int, committed func(uint32, uint64)) error {
	var writer outbox.Writer
	seqs := make(map[uint32]uint64)
	payload := make([]byte, 0, cfg.Bytes)
	for at := w * rowsPerTransaction; at < cfg.Messages; at += writers * rowsPerTransaction {
		type message struct {
			key uint32
			seq uint64
		}
		var mine []message
		rows := func(yield func(outbox.Message, error) bool) {
			for i := at; i < min(at+rowsPerTransaction, cfg.Messages); i++ {
				// Keys of one writer are no other's: their numbers are given out in commit order.
				key := uint32(i*2654435761%cfg.Keys/writers*writers + w)
				seqs[key]++
				mine = append(mine, message{key, seqs[key]})
				payload = check.Encode(payload[:0], key, seqs[key], cfg.Bytes)
				if !yield(outbox.Message{Topic: topic, Key: fmt.Sprint("key-", key), EventType: "bench.happened", Payload: payload}, nil) {
					return
				}
			}
		}
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := writer.Copy(ctx, tx, iter.Seq2[outbox.Message, error](rows))
			return err
		})
		if err != nil {
			return err
		}
		for _, m := range mine {
			committed(m.key, m.seq)
		}
	}
	return nil
}
