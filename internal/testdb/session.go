package testdb

import (
	"context"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/relay"
)

// Acquire acquires a session, which is closed at the end of the test at the latest.
func Acquire(t testing.TB, s relay.Source) relay.Session {
	t.Helper()
	ctx := await.Context(t)
	session, err := s.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close(context.Background()) }) // the test may have done so
	return session
}

// Next waits for the next messages, at most max.
func Next(t testing.TB, s relay.Session, max int) []relay.Delivery {
	t.Helper()
	ctx := await.Context(t)
	b, err := s.Next(ctx, max)
	if err != nil {
		t.Fatal(err)
	}
	return b.Deliveries
}

// Held returns the first holds of a lane, at most limit.
func Held(t testing.TB, s relay.Session, lane string, limit int) []relay.Delivery {
	t.Helper()
	lists, err := s.Held(await.Context(t), []string{lane}, limit)
	if err != nil {
		t.Fatal(err)
	}
	return lists[0]
}

// Payloads are the payloads, with spaces between.
func Payloads(ds []relay.Delivery) string {
	var all []string
	for _, d := range ds {
		all = append(all, string(d.Payload))
	}
	return strings.Join(all, " ")
}

// Settle settles a delivered message and those before it.
func Settle(t testing.TB, s relay.Session, through *relay.Delivery) {
	t.Helper()
	if err := s.Settle(t.Context(), relay.Settlement{Through: through, Delivered: 1}); err != nil {
		t.Fatal(err)
	}
}
