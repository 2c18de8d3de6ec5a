package bounds

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipeline is a client that sends what has begun one after the other.
type pipeline struct {
	mu   sync.Mutex
	free time.Time
}

// send takes 10 µs for each message.
func (p *pipeline) send(n int64) {
	p.mu.Lock()
	now := time.Now()
	if p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(n) * 10 * time.Microsecond)
	until := p.free
	p.mu.Unlock()
	time.Sleep(time.Until(until)) // in a bubble, as in all tests here
}

// sending is a sender that always has more.
func sending(ctx context.Context, t *testing.T, s *Sender, p *pipeline, size func() int64) (n int64) {
	for ctx.Err() == nil {
		a := Amount{Messages: size()}
		c, err := s.Begin(ctx, a)
		if err != nil {
			break
		}
		p.send(a.Messages)
		s.End(c)
		n += a.Messages
	}
	return n
}

func TestSendersShareAClientByTheirWeights(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			f := NewFair(Amount{32_000, 32 << 20})
			var p pipeline
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			random := rand.New(rand.NewPCG(seed, 33))
			weights := []int64{1, 1, 2, 3, 5}
			sent := make([]int64, len(weights))
			var mu sync.Mutex
			var running sync.WaitGroup
			for i, w := range weights {
				s, most := f.Sender(float64(w)), 1+random.Int64N(150)
				draws := rand.New(rand.NewPCG(seed, uint64(i)))
				size := func() int64 { mu.Lock(); defer mu.Unlock(); return 100 + draws.Int64N(most) }
				for range 8 { // calls at once, so that it always has one waiting
					running.Go(func() {
						n := sending(ctx, t, s, &p, size)
						mu.Lock()
						defer mu.Unlock()
						sent[i] += n
					})
				}
			}
			running.Wait()
			var all int64
			for _, n := range sent {
				all += n
			}
			for i, w := range weights {
				if share, want := float64(sent[i])/float64(all), float64(w)/12; share < 0.9*want || share > 1.1*want {
					t.Errorf("seed %d: weight %d has %.3f of all, want %.3f: %v", seed, w, share, want, sent)
				}
			}
			if all < 5_900_000 {
				t.Errorf("seed %d: %d were sent, though 6,000,000 could be: %v", seed, all, sent)
			}
		})
	}
}

// What one with little to send waits for does not depend on how much the others have waiting.
func TestASmallCallPassesTheCallsThatWaitOfOneWithMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := NewFair(Amount{32_000, 32 << 20})
		var p pipeline
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		var running sync.WaitGroup
		noisy, quiet, random := f.Sender(1), f.Sender(1), rand.New(rand.NewPCG(1, 2))
		c, err := quiet.Begin(ctx, Amount{Messages: 1})
		if err != nil {
			t.Fatal(err)
		}
		quiet.End(c)
		for range 100 {
			running.Go(func() { sending(ctx, t, noisy, &p, func() int64 { return 250 }) })
		}
		for ctx.Err() == nil {
			time.Sleep(time.Duration(10+random.IntN(20)) * time.Millisecond)
			if portion, shares := quiet.Shares(); !shares || portion.Messages < 250 {
				t.Errorf("beside others its portion is %v, %v", portion, shares)
			}
			began := time.Now()
			c, err := quiet.Begin(ctx, Amount{Messages: 1})
			if err != nil {
				break
			}
			if waited := time.Since(began); waited != 0 {
				t.Errorf("it waited %v, though its part is free", waited)
			}
			p.send(1)
			quiet.End(c)
			if took := time.Since(began); took > 15*time.Millisecond { // 1,000 are sent in 10 ms
				t.Errorf("a call took %v", took)
			}
		}
		stop()
		running.Wait()
	})
}

func TestACallThatHangsHoldsUpOnlyItsSender(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := NewFair(Amount{32_000, 32 << 20})
		hangs, others := f.Sender(1), []*Sender{f.Sender(1), f.Sender(1)}
		var held []*sent
		for range 4 {
			c, err := hangs.Begin(t.Context(), Amount{Messages: 1000})
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, c)
		}
		for _, s := range others {
			began := time.Now()
			c, err := s.Begin(t.Context(), Amount{Messages: 60}) // its own part is free
			if err != nil || time.Since(began) != 0 {
				t.Fatalf("a small call waited %v: %v", time.Since(began), err)
			}
			s.End(c)
			soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			c, err = s.Begin(soon, Amount{Messages: 900})
			cancel()
			if err != nil {
				t.Fatalf("a large call waits behind one that hangs: %v", err)
			}
			s.End(c)
		}
		for _, c := range held {
			hangs.End(c)
		}
		given, cancel := context.WithCancel(t.Context())
		c, _ := hangs.Begin(t.Context(), Amount{Messages: 1000})
		cancel()
		if _, err := others[0].Begin(given, Amount{Messages: 900}); err == nil {
			t.Error("a call began beside a full client")
		}
		hangs.End(c)
		if f.used != (Amount{}) || len(f.calls)+len(f.waiting) != 0 || hangs.calls+others[0].calls != 0 {
			t.Errorf("left: %+v", f)
		}
	})
}

func TestWhoSendsAloneNeitherWaitsNorAllocates(t *testing.T) {
	f := NewFair(Amount{32_000, 32 << 20})
	s, other := f.Sender(1), f.Sender(1)
	calls := make([]*sent, 0, 4)
	send := func() {
		for range cap(calls) {
			c, err := s.Begin(t.Context(), Amount{Messages: 3000, Bytes: 5 << 20})
			if err != nil {
				t.Fatal(err)
			}
			calls = append(calls, c)
		}
		if _, shares := s.Shares(); shares {
			t.Fatal("it is alone")
		}
		for _, c := range calls {
			s.End(c)
		}
		calls = slices.Delete(calls, 0, len(calls))
	}
	if n := testing.AllocsPerRun(100, send); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if _, waits := f.Waiting(); waits != 0 {
		t.Errorf("it waited %d times", waits)
	}
	c, _ := other.Begin(t.Context(), Amount{Messages: 1})
	other.End(c)
	if _, shares := s.Shares(); !shares {
		t.Error("another one has just sent")
	}
}

// A broker on a long way has more on its way than a near one. In both cases what comes then hardly waits: the one that
// sends much has all of a near one, and a third of one that is 40 ms away.
func TestPortionsAreAsLargeAsTheBrokerTakesWithoutDelay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		way    time.Duration
		least  float64 // messages a second
		longer time.Duration
	}{{0, 95_000, 15 * time.Millisecond}, {40 * time.Millisecond, 30_000, 65 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			f := NewFair(Amount{32_000, 32 << 20})
			var p pipeline
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			noisy, quiet := f.Sender(1), f.Sender(1)
			var running sync.WaitGroup
			var sent int64
			var mu sync.Mutex
			for range 4 {
				running.Go(func() {
					for ctx.Err() == nil {
						portion, _ := noisy.Shares()
						portion.Bytes = 0
						call, err := noisy.Begin(ctx, portion)
						if err != nil {
							return
						}
						p.send(portion.Messages)
						time.Sleep(c.way)
						noisy.End(call)
						mu.Lock()
						sent += portion.Messages
						mu.Unlock()
					}
				})
			}
			var longest time.Duration
			for ctx.Err() == nil {
				time.Sleep(20 * time.Millisecond)
				began := time.Now()
				call, err := quiet.Begin(ctx, Amount{Messages: 1})
				if err != nil {
					break
				}
				p.send(1)
				time.Sleep(c.way)
				quiet.End(call)
				longest = max(longest, time.Since(began))
			}
			running.Wait()
			if rate := float64(sent) / 60; rate < c.least || longest > c.longer {
				t.Errorf("%v away: %.0f messages/s, and a small call takes %v", c.way, rate, longest)
			}
		})
	}
}
