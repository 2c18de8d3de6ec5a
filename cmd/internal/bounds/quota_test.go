package bounds

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestAQuotaBoundsAllPartsTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		most       Amount
		here, want int64
	}{{Amount{Messages: 1000}, 4, 60_000}, {Amount{Messages: 1000}, 1, 15_000},
		{Amount{Bytes: 50_000}, 4, 30_000}, {Amount{10, 50_000}, 4, 600}} {
		synctest.Test(t, func(t *testing.T) {
			q := NewQuota(c.most, 4)
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			var running sync.WaitGroup
			var sent atomic.Int64
			for range c.here {
				q.Come()
				running.Go(func() {
					defer q.Go()
					for q.Take(ctx, Amount{5, 500}) == nil {
						sent.Add(5)
					}
				})
			}
			running.Wait()
			if n := sent.Load(); n < c.want-50 || n > c.want+c.want/100+50 {
				t.Errorf("%+v: %d messages in a minute, want %d", c, n, c.want)
			}
		})
	}
}

func TestWhoStopsWaitingForAQuotaGivesItBackAndNoneIsNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQuota(Amount{Messages: 10}, 1)
		if err := q.Take(t.Context(), Amount{Messages: 10}); err != nil {
			t.Fatal(err)
		}
		soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := q.Take(soon, Amount{Messages: 1000}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		began := time.Now()
		if err := q.Take(t.Context(), Amount{Messages: 1}); err != nil || time.Since(began) > time.Second {
			t.Errorf("it waited %v: %v", time.Since(began), err)
		}
		none := NewQuota(Amount{}, 3)
		none.Come()
		none.Go()
		if err := none.Take(t.Context(), Amount{Messages: 1 << 40}); err != nil {
			t.Error(err)
		}
	})
}
