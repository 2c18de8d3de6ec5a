package outbox_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
)

func TestAPauseThatWasAskedForLeavesTheKindOfAnErrorAlone(t *testing.T) {
	t.Parallel()
	busy := errors.New("busy")
	for _, err := range []error{
		outbox.Unavailable(outbox.RetryAfter(busy, time.Minute)),
		outbox.RetryAfter(outbox.Unavailable(busy), time.Minute),
		fmt.Errorf("publish: %w", outbox.RetryAfter(outbox.Unavailable(busy), time.Minute)),
	} {
		if !outbox.IsUnavailable(err) || outbox.IsPermanent(err) || !errors.Is(err, busy) {
			t.Errorf("%v has lost its kind", err)
		}
		if d := outbox.RetryDelay(err); d != time.Minute {
			t.Errorf("%v asks for %v", err, d)
		}
	}
	if outbox.RetryAfter(nil, time.Minute) != nil {
		t.Error("no error has become one")
	}
	if d := outbox.RetryDelay(outbox.RetryAfter(busy, -time.Minute)) + outbox.RetryDelay(busy) + outbox.RetryDelay(nil); d != 0 {
		t.Errorf("%v was not asked for", d)
	}
}
