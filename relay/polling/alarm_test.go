package polling

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestAnAlarmGoesOffNotBeforeItsTimeAndNotAgain(t *testing.T) {
	t.Parallel()
	a := newAlarm()
	defer a.end()
	for range 20 {
		began := time.Now()
		if err := a.pause(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < time.Millisecond {
			t.Errorf("an alarm of 1 ms goes off after %v", took)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.pause(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("a pause whose context has ended: %v", err)
	}
	a.reset(time.Millisecond) // instead of the hour
	<-a.C
}

func BenchmarkPause(b *testing.B) {
	a := newAlarm()
	defer a.end()
	for b.Loop() {
		_ = a.pause(b.Context(), time.Millisecond)
	}
}
