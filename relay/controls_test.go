package relay

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Never more than the rate, and a tenth of a second's worth ahead; and never less, when what may go is asked for in
// time.
func TestAThrottleLetsItsRateThrough(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{0.5, 1, 7, 100, 12_345} {
		rng := rand.New(rand.NewPCG(1, uint64(rate)))
		start := time.Unix(1_700_000_000, 0)
		now := start
		limit := throttle{}
		limit.set(0, rate)
		sent := 0
		for range 20_000 {
			limit.refill(now)
			n := limit.allows()
			if n > max(1, int(rate/10)) {
				t.Fatalf("at %v a second, %d messages at once", rate, n)
			}
			limit.take(n)
			sent += n
			at := limit.next()
			if n == 0 && !at.After(now) {
				t.Fatalf("at %v a second, nothing may go and it is not said when", rate)
			}
			if at.IsZero() {
				at = now.Add(time.Duration(rng.Float64() / rate * float64(time.Second)))
			}
			now = at
			allowed := now.Sub(start).Seconds()*rate + max(1, rate/10)
			if got := float64(sent); got > allowed+0.001 || got < allowed-2*max(1, rate/10)-2 {
				t.Fatalf("at %v a second, %d messages after %v", rate, sent, now.Sub(start))
			}
		}
	}
}
