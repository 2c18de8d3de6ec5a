package relay

// Waker connects a writer with a relay in the same process: what was committed is read at once, instead
// of at the next poll. Give Wake to outbox.WriterConfig and the Waker itself to the source's Wake. Each
// source needs a Waker of its own: of several that wait on one, a commit wakes one.
type Waker chan struct{}

// NewWaker returns a Waker.
func NewWaker() Waker { return make(Waker, 1) }

// Wake ends the source's pause. It never blocks; wake-ups that come together are one. Safe for concurrent
// use.
func (w Waker) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}
