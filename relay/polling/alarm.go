package polling

import (
	"context"
	"time"
)

// alarm is a timer that is exact to about a tenth of a millisecond where the system has one. Those of package time wait
// whole milliseconds while nothing else happens in the process, half a one too long on average. It may go off early.
type alarm struct {
	C   chan struct{}
	set func(time.Duration)
	end func()
}

func newAlarm() *alarm {
	a := &alarm{C: make(chan struct{}, 1)}
	var err error
	if a.set, a.end, err = exactTimer(a.ring); err == nil {
		return a
	}
	t := time.AfterFunc(time.Hour, a.ring)
	t.Stop()
	a.set, a.end = func(d time.Duration) { t.Reset(d) }, func() { t.Stop() }
	return a
}

func (a *alarm) ring() {
	select {
	case a.C <- struct{}{}:
	default:
	}
}

// reset makes the alarm go off in d, which is positive, and forgets that it has.
func (a *alarm) reset(d time.Duration) {
	select {
	case <-a.C:
	default:
	}
	a.set(d)
}

// pause waits for d, or until ctx ends.
func (a *alarm) pause(ctx context.Context, d time.Duration) error {
	a.reset(d)
	select {
	case <-a.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
