package testdb

import (
	"context"
	"sync"
	"testing"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/relay"
)

// Run runs a relay from source to broker until stop is called, which returns when it has ended. ctx ends with the
// relay.
func Run(t *testing.T, source relay.Source, broker relay.Broker, cfg relay.Config) (ctx context.Context, stop func()) {
	t.Helper()
	r, err := relay.New(source, broker, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(await.Context(t))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return ctx, stop
}
