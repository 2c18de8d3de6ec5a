// Package owner is what every owner of a lease shares: how long it owns, and why it does no longer.
package owner

import (
	"context"
	"errors"
	"sync"
	"time"
)

// How long a lease lasts by default, and at least.
const (
	Default = 3 * time.Second
	Min     = 100 * time.Millisecond
)

// Term is how long a session owns what it reads. A statement that the server answers prolongs it. An error ends it for
// good: the outcome of a statement is unknown then, so nothing may be written on top of it.
type Term struct {
	Length time.Duration

	state struct {
		sync.Mutex
		sent   time.Time // when the last statement that was answered had been sent
		length time.Duration
		err    error
	}
	sooner chan struct{} // signalled when it has become shorter
	ended  chan struct{} // closed when err is set

	stop context.CancelFunc
	kept chan struct{} // closed when the goroutine of Keep has ended
}

// NewTerm begins a term by a statement that was sent at since.
func NewTerm(length time.Duration, since time.Time) *Term {
	t := &Term{Length: length, ended: make(chan struct{}), sooner: make(chan struct{}, 1), kept: make(chan struct{})}
	t.Prolong(since)
	return t
}

// Prolong notes a statement that was sent at since and answered. The term lasts from the time when the server got it,
// which is later, so the time noted here ends first.
func (t *Term) Prolong(since time.Time) { t.ProlongBy(since, t.Length) }

// ProlongBy is Prolong for a term of another length from now on.
func (t *Term) ProlongBy(since time.Time, length time.Duration) {
	t.state.Lock()
	defer t.state.Unlock()
	if length < t.state.length {
		select {
		case t.sooner <- struct{}{}:
		default:
		}
	}
	t.state.sent, t.state.length = since, length
}

// Until returns the end of the term, and why it has ended before.
func (t *Term) Until() (time.Time, error) {
	t.state.Lock()
	defer t.state.Unlock()
	return t.state.sent.Add(t.state.length), t.state.err
}

// Due is how long it is until a third of the term has passed.
func (t *Term) Due() time.Duration {
	t.state.Lock()
	defer t.state.Unlock()
	return time.Until(t.state.sent.Add(t.state.length / 3))
}

// Fail ends the term, and returns err.
func (t *Term) Fail(err error) error {
	t.state.Lock()
	defer t.state.Unlock()
	if t.state.err == nil {
		t.state.err = err
		close(t.ended)
	}
	return err
}

// Ended is closed when the term has ended; Failure says why.
func (t *Term) Ended() <-chan struct{} { return t.ended }

// Failure returns why the term has ended, or nil.
func (t *Term) Failure() error {
	_, err := t.Until()
	return err
}

// Keep calls f whenever it is due, until f fails, the term ends, or StopKeeping is called.
func (t *Term) Keep(due func() time.Duration, f func(ctx context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	go func() {
		defer close(t.kept)
		timer := time.NewTimer(due())
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.ended:
				return
			case <-t.sooner:
			case <-timer.C:
			}
			if due() <= 0 && f(ctx) != nil {
				return
			}
			timer.Reset(due())
		}
	}()
}

// StopKeeping leaves the term as it is: it ends when nothing prolongs it.
func (t *Term) StopKeeping() {
	t.stop()
	<-t.kept
}

// ErrClosed ends a term that is not used any more.
var ErrClosed = errors.New("the session is closed")
