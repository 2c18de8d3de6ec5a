package bounds

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryInFlightStaysWithinTheBoundAndAPageEachAndNobodyStarves(t *testing.T) {
	t.Parallel()
	const bytes, page, destinations = 10_000, 1000, 30
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			m := NewMemory(Amount{Bytes: bytes})
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
			defer stop()
			var running sync.WaitGroup
			pages := make([]int, destinations)
			for i := range destinations {
				running.Go(func() {
					random := rand.New(rand.NewPCG(seed, uint64(i))) // one goroutine's
					yields := make(chan struct{}, 1)
					s := m.Share(func() {
						select {
						case yields <- struct{}{}:
						default:
						}
					})
					defer s.Close()
					stalled := i%5 == 0 // it settles nothing
					var held []*Held
					give := func() {
						for _, h := range held {
							h.Give()
							h.Give()
						}
						held = nil
						s.Cancel()
					}
					defer give()
					var settling sync.WaitGroup
					defer settling.Wait()
					for ctx.Err() == nil {
						reading, end := context.WithCancel(ctx)
						stop := make(chan struct{})
						go func() {
							defer close(stop)
							select {
							case <-yields:
								end()
							case <-reading.Done():
							}
						}()
						h, err := s.Take(reading)
						if stalled && err == nil && len(held) == 4 { // as much as it may have
							<-reading.Done()
						}
						end()
						<-stop
						if err != nil {
							give()
							continue
						}
						h.Read(Amount{Messages: int64(random.IntN(2)), Bytes: int64(random.IntN(page))})
						pages[i]++
						if stalled {
							held = append(held, h)
							continue
						}
						pause := time.Duration(random.IntN(1000)) * time.Millisecond
						settling.Go(func() {
							time.Sleep(pause)
							h.Give()
							h.Give()
						})
					}
				})
			}
			for ctx.Err() == nil {
				time.Sleep(time.Second)
				if u := m.Use(); u.Used.Bytes > bytes+destinations*page {
					t.Fatalf("%d bytes in flight", u.Used.Bytes)
				}
			}
			running.Wait()
			for i, n := range pages {
				if i%5 == 0 && n < 1 || i%5 > 0 && n < 500 {
					t.Errorf("seed %d: destination %d has read %d pages: %v", seed, i, n, pages)
				}
			}
			if u := m.Use(); u.Used != (Amount{}) || u.Waiting != 0 {
				t.Errorf("seed %d: left: %+v", seed, u)
			}
		})
	}
}

func TestWhoHasNothingInFlightMayReadAndAPlaceIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(Amount{Messages: 10})
		full, other := m.Share(nil), m.Share(nil)
		h, err := full.Take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h.Read(Amount{Messages: 10})
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := full.Take(soon); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("there is no room: %v", err)
		}
		minute, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		first, err := other.Take(minute)
		if err != nil {
			t.Fatalf("who has nothing may read: %v", err)
		}
		first.Read(Amount{Messages: 1})
		if u := m.Use(); u.Waiting != 1 || u.Used.Messages != 11 {
			t.Errorf("%+v", u)
		}
		h.Give()
		if h, err = full.Take(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.Give()
		first.Give()
		if u := m.Use(); u.Used != (Amount{}) {
			t.Errorf("left: %+v", u)
		}
	})
}
