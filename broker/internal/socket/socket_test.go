package socket_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgoutbox/outbox/broker/internal/socket"
)

func TestAConnectionIsClosedWheneverItComes(t *testing.T) {
	t.Parallel()
	s := socket.New()
	early, late := pipe(t), pipe(t)
	if err := s.Hold(early); err != nil {
		t.Fatal(err)
	}
	s.Shut()
	if err := s.Hold(late); !errors.Is(err, net.ErrClosed) {
		t.Errorf("held after Shut: %v", err)
	}
	for name, conn := range map[string]net.Conn{"early": early, "late": late} {
		if err := conn.SetDeadline(time.Time{}); err == nil {
			t.Errorf("the %s connection is open", name)
		}
	}
	s.Shut() // once more changes nothing
}

func pipe(t *testing.T) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	return near
}

func TestOnlyWhoIsStuckBeyondTheGraceIsInterrupted(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	for name, c := range map[string]struct {
		ends, releases time.Duration // after the start
		stuck          bool
	}{
		"no end of the context": {time.Hour, time.Second, false},
		"within the grace":      {time.Second, time.Second + 250*time.Millisecond - 1, false},
		"beyond the grace":      {time.Second, time.Second + 250*time.Millisecond + 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				s := socket.New()
				release := s.Guard(ctx, "nats")
				end := time.AfterFunc(c.ends, func() { cancel(gone) })
				defer end.Stop()
				time.Sleep(c.releases)
				release()
				if s.Alive() == c.stuck || errors.Is(s.Cause(), gone) != c.stuck {
					t.Errorf("cause %v", s.Cause())
				}
			})
		})
	}
}
