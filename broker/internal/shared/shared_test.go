package shared_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgoutbox/outbox/broker/internal/shared"
)

// conn is a connection that breaks when it is told to.
type conn struct{ broken, closed atomic.Bool }

func (c *conn) Usable() bool { return !c.broken.Load() && !c.closed.Load() }
func (c *conn) Sever(error)  { c.broken.Store(true) }
func (c *conn) Close()       { c.closed.Store(true) }

var errUnfit = errors.New("unfit")

var errEnded = errors.New("the broker is closed")

func fault(err error) error { return fmt.Errorf("connect: %w", err) }

// server is dialled. Each dial takes a second, or ends with its context. The race detector finds dials at the same time
// too: only one caller at a time may write.
type server struct {
	*shared.Link[*conn]
	refuse          atomic.Bool
	deaf            bool // a dial doesn't hear that its context ends
	dialing         bool
	dialled         []*conn
	prepared, unfit int // how often a connection was prepared, and how often that has to fail
}

func newServer(t *testing.T) *server {
	s := &server{}
	s.Link = shared.New(func(ctx context.Context) (*conn, error) {
		if s.dialing {
			t.Error("two callers dial at a time")
		}
		s.dialing = true
		defer func() { s.dialing = false }()
		if s.deaf {
			ctx = context.Background()
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if s.refuse.Load() {
			return nil, errors.New("refused")
		}
		c := &conn{}
		s.dialled = append(s.dialled, c)
		return c, nil
	}, func(context.Context, *conn) error {
		if s.prepared++; s.prepared <= s.unfit {
			return errUnfit
		}
		return nil
	}, errEnded, fault)
	return s
}

// get wants the connection that was dialled as number n.
func (s *server) get(t *testing.T, n int) *conn {
	t.Helper()
	c, err := s.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.dialled) != n || s.dialled[n-1] != c || s.Current() != c {
		t.Fatalf("%d connections were dialled, and the last is returned: %t", len(s.dialled), s.dialled[len(s.dialled)-1] == c)
	}
	return c
}

func TestAConnectionIsPreparedOnceAndSeveredIfThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.unfit = 1
		s.get(t, 1)
		if _, err := s.Ready(t.Context()); !errors.Is(err, errUnfit) || s.dialled[0].Usable() {
			t.Errorf("error %v", err)
		}
		for range 2 {
			if c, err := s.Ready(t.Context()); err != nil || c != s.dialled[1] || s.prepared != 2 {
				t.Errorf("error %v, prepared %d times", err, s.prepared)
			}
		}
	})
}

func TestOneConnectionServesAllUntilItBreaks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		for n := 1; n <= 3; n++ {
			var callers sync.WaitGroup
			for range 10 {
				callers.Go(func() {
					if c, err := s.Get(t.Context()); err != nil || !c.Usable() {
						t.Errorf("%v, %v", c, err)
					}
				})
			}
			callers.Wait()
			s.get(t, n).broken.Store(true)
		}
		for _, c := range s.dialled {
			if c.closed.Load() {
				t.Error("a connection that has ended by itself was closed")
			}
		}
	})
}

func TestADialThatFailsIsFollowedByThatOfTheNextCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.refuse.Store(true)
		failed := make(chan error)
		go func() {
			_, err := s.Get(t.Context())
			failed <- err
		}()
		synctest.Wait() // it dials
		time.AfterFunc(1500*time.Millisecond, func() { s.refuse.Store(false) })
		go func() { // it waits for its turn
			_, err := s.Get(t.Context())
			failed <- err
		}()
		if err := <-failed; err == nil || err.Error() != "refused" {
			t.Errorf("the first: %v", err)
		}
		if err := <-failed; err != nil {
			t.Errorf("the second: %v", err)
		}
		s.get(t, 1)
	})
}

func TestTheEndOfAContextEndsTheWaitForAnothersDialAndNotTheDial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		var dialer sync.WaitGroup
		dialer.Go(func() {
			if _, err := s.Get(t.Context()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("shutting down")
		time.AfterFunc(time.Millisecond, func() { cancel(reason) })
		start := time.Now()
		if _, err := s.Get(ctx); !errors.Is(err, reason) || err.Error() != "connect: shutting down" {
			t.Errorf("the caller that waited: %v", err)
		}
		if waited := time.Since(start); waited != time.Millisecond { // of the bubble
			t.Errorf("it waited %v", waited)
		}
		dialer.Wait()
		s.get(t, 1)
	})
}

func TestTheEndOfTheDialersContextLeavesTheDialToThoseWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		ctx, cancel := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		callers.Go(func() {
			if _, err := s.Get(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("the one that dialled: %v", err)
			}
		})
		synctest.Wait()
		callers.Go(func() {
			if _, err := s.Get(t.Context()); err != nil {
				t.Errorf("the one that waited: %v", err)
			}
		})
		synctest.Wait()
		cancel()
		callers.Wait()
		s.get(t, 1)
	})
}

func TestCloseDuringADialEndsItAndLeavesNoConnection(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			s.deaf = deaf
			var callers sync.WaitGroup
			for range 3 { // one dials, two wait
				callers.Go(func() {
					if c, err := s.Get(t.Context()); c != nil || err != errEnded {
						t.Errorf("%v, %v", c, err)
					}
				})
			}
			synctest.Wait()
			start := time.Now()
			s.Close()
			if waited := time.Since(start) != 0; waited != deaf { // in the bubble
				t.Errorf("Close waited: %t, and the dial is deaf: %t", waited, deaf)
			}
			for _, c := range s.dialled {
				if !c.closed.Load() {
					t.Error("Close left a connection")
				}
			}
			callers.Wait()
			if want := map[bool]int{true: 1}[deaf]; len(s.dialled) != want || s.Current() != nil {
				t.Errorf("%d dialled, want %d, the current is %v", len(s.dialled), want, s.Current())
			}
		})
	}
}

func TestNobodyDialsAfterClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		c := s.get(t, 1)
		s.Close()
		s.Close()
		if !c.closed.Load() || s.Current() != nil {
			t.Errorf("closed %t, the current is %v", c.closed.Load(), s.Current())
		}
		if _, err := s.Get(t.Context()); err != errEnded || len(s.dialled) != 1 {
			t.Errorf("%v after %d dials", err, len(s.dialled))
		}
	})
}

func TestCloseBeforeTheFirstUseEndsTheLinkToo(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.Close()
	if _, err := s.Get(t.Context()); err != errEnded || len(s.dialled) != 0 {
		t.Errorf("%v after %d dials", err, len(s.dialled))
	}
}
