package relay

import (
	"fmt"
	"math"
	"time"
)

// Policy says what becomes of a message that will not be tried again: the broker refused it for good,
// the row is not a message, or MaxAttempts failed.
type Policy string

const (
	// DeadLetter sets the message aside with its error and goes on with its key.
	DeadLetter Policy = "dead_letter"
	// Block keeps the message and those behind it with the same key held until an operator requeues or
	// discards it; other keys flow.
	Block Policy = "block"
	// Stop ends the relay of this destination with an error.
	Stop Policy = "stop"
)

func (p Policy) validate() error {
	switch p {
	case DeadLetter, Block, Stop:
		return nil
	}
	return fmt.Errorf("unknown policy %q: want %q, %q or %q", string(p), DeadLetter, Block, Stop)
}

// Backoff is the pause before attempt n+1: Initial·2ⁿ⁻¹, at most Max, of which a random part up to a half
// is taken off, so that many lanes do not come back at once.
type Backoff struct {
	Initial time.Duration
	Max     time.Duration
}

// delay returns the pause after the n-th failure, n ≥ 1; random is uniform in [0, 1).
func (b Backoff) delay(n int, random float64) time.Duration {
	d := float64(b.Initial) * math.Pow(2, float64(min(n, 62)-1))
	d = min(d, float64(b.Max))
	return time.Duration(d * (1 - random/2))
}
