package bounds

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestTurnsAreBoundedPassOnAndComeToAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := NewTurns(4)
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		var running sync.WaitGroup
		turns := make([]int, 40)
		for i := range turns {
			running.Go(func() {
				turn := all.Turn("one")
				defer turn.End()
				for ctx.Err() == nil {
					if turn.Begin(ctx) != nil {
						return
					}
					turns[i]++
					if i%4 == 0 {
						time.Sleep(time.Minute) // it doesn't say that it has ended
					} else {
						time.Sleep(time.Second)
					}
					if i%4 == 1 {
						turn.End()
					}
				}
			})
		}
		if err := all.Turn("two").Begin(ctx); err != nil {
			t.Errorf("another server: %v", err)
		}
		for ctx.Err() == nil {
			time.Sleep(time.Second)
			for _, l := range all.Use() {
				if l.Having > 4 {
					t.Fatalf("%+v", l)
				}
			}
		}
		running.Wait()
		for i, n := range turns {
			if n < 40 {
				t.Errorf("%d has had %d turns: %v", i, n, turns)
			}
		}
		if l := all.Use()[0]; l.Having != 0 || l.Waiting != 0 {
			t.Errorf("left: %+v", l)
		}
	})
}

func TestWithoutABoundNobodyWaits(t *testing.T) {
	t.Parallel()
	all := NewTurns(0)
	for range 100 {
		if err := all.Turn("one").Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
