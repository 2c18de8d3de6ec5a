package nats

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
)

// Identity returns the addresses of the servers, and, if a stream is named, when it was made: so a cluster is known at
// another address, and a stream that was made anew at the same one. It changes nothing.
func (b *Broker) Identity(ctx context.Context) ([]string, error) {
	var names []string
	for _, server := range b.urls {
		u, err := url.Parse(server)
		if err != nil {
			continue // New has parsed it
		}
		names = append(names, "nats "+strings.ToLower(net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "4222"))))
	}
	if b.cfg.Stream == "" {
		return names, nil
	}
	l, err := b.shared.Get(ctx)
	if err != nil {
		return nil, outbox.Unavailable(err)
	}
	if !l.mayAsk(b.api("STREAM.INFO." + b.cfg.Stream)) {
		return names, nil
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.AckTimeout)
	defer cancel()
	stream, err := l.js.Stream(ctx, b.cfg.Stream)
	if err != nil {
		return names, nil // it doesn't exist yet, or the user may not ask
	}
	created := stream.CachedInfo().Created.UTC().Format(time.RFC3339Nano)
	return append(names, fmt.Sprintf("nats stream %s of %s", b.cfg.Stream, created)), nil
}
