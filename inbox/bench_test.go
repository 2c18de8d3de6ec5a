package inbox

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
)

// BenchmarkHandle compares Handle with the barest loop that people write by hand: BEGIN, INSERT … ON CONFLICT,
// the effect, COMMIT, on the same server, taking turns. ratio is Handle's throughput by the loop's.
//
//	go test -run - -bench Handle -benchtime 4000x ./inbox
func BenchmarkHandle(b *testing.B) {
	for name, workers := range map[string]int{"1": 1, "8": 8} {
		b.Run("workers="+name, func(b *testing.B) {
			w := setup(b, servers.PostgresConfig{Fsync: true})
			w.exec(`CREATE TABLE processed (dedup_key text PRIMARY KEY, processed_at timestamptz NOT NULL DEFAULT now())`)
			box, err := New("payments", Config{})
			if err != nil {
				b.Fatal(err)
			}
			handle := func(ctx context.Context, msg *outbox.Message) error {
				_, err := box.Handle(ctx, w.pool, msg, effect)
				return err
			}
			byHand := func(ctx context.Context, msg *outbox.Message) error {
				return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
					tag, err := tx.Exec(ctx, `INSERT INTO processed (dedup_key) VALUES ($1) ON CONFLICT DO NOTHING`, msg.ID.String())
					if err != nil || tag.RowsAffected() == 0 {
						return err
					}
					return effect(ctx, tx, msg)
				})
			}
			run := func(n int, do func(context.Context, *outbox.Message) error) time.Duration {
				var all sync.WaitGroup
				started := time.Now()
				for range workers {
					all.Go(func() {
						for range n / workers {
							if err := do(b.Context(), message("k")); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
				return time.Since(started)
			}
			run(50*workers, handle)
			run(50*workers, byHand)
			// Short turns and their median: whatever else the machine does hits some of them only.
			turns := max(b.N/(20*workers), 1)
			ours, theirs := make([]float64, turns), make([]float64, turns)
			b.ResetTimer()
			for i := range turns {
				ours[i] = 20 * float64(workers) / run(20*workers, handle).Seconds()
				theirs[i] = 20 * float64(workers) / run(20*workers, byHand).Seconds()
			}
			slices.Sort(ours)
			slices.Sort(theirs)
			b.ReportMetric(ours[turns/2], "handle/s")
			b.ReportMetric(theirs[turns/2], "by-hand/s")
			b.ReportMetric(ours[turns/2]/theirs[turns/2], "ratio")
		})
	}
}
