package lanestest

import (
	"context"
	"errors"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/internal/await"
)

// ReadBack requires that a consumer reads from the record of sent, which has a format, its id, key, payload and the
// header tenant; with an event, also what a CloudEvent carries.
func ReadBack(t *testing.T, sent *outbox.Message, event bool, open func(consume.Handler) (Consumer, error)) {
	t.Helper()
	ctx, done := context.WithCancelCause(await.Context(t))
	var got outbox.Message
	handled := errors.New("handled")
	c, err := open(func(_ context.Context, m *outbox.Message) error {
		got = *m
		done(handled)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Run(ctx); err != nil || !errors.Is(context.Cause(ctx), handled) {
		t.Fatalf("%v, %v", err, context.Cause(ctx))
	}
	tenant, _ := got.Header("tenant")
	if got.ID != sent.ID || got.Key != sent.Key || string(got.Payload) != string(sent.Payload) || tenant != "acme" ||
		event && (got.EventType != sent.EventType || got.ContentType != sent.ContentType || !got.CreatedAt.Equal(sent.CreatedAt)) {
		t.Errorf("received %+v\nsent     %+v", got, *sent)
	}
}
