package nats_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// A cluster is known at another address, and a stream that was made anew at the same one; another server is neither.
func TestAClusterIsKnownByItsAddressOrItsStream(t *testing.T) {
	t.Parallel()
	server, other := servers.OwnNATS(t), servers.OwnNATS(t)
	proxy := testnet.New(t, server.Addr())
	stream := func(url string) jetstream.JetStream {
		js := jetStream(t, url)
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
			t.Fatal(err)
		}
		return js
	}
	names := func(urls ...string) []string {
		t.Helper()
		b, err := nats.New(strings.Join(urls, ","), nats.Config{Stream: "ORDERS"})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		names, err := b.Identity(t.Context())
		if err != nil || len(names) != len(urls)+1 {
			t.Fatalf("%q, %v", names, err)
		}
		return names
	}
	shared := func(a, b []string) bool {
		return slices.ContainsFunc(a, func(name string) bool { return slices.Contains(b, name) })
	}
	js := stream(server.URL())
	stream(other.URL())
	first := names(strings.Replace(server.URL(), "://", "://user:secret@", 1))
	if strings.Contains(strings.Join(first, " "), "secret") {
		t.Errorf("the identity has a password in it: %q", first)
	}
	if moved := names("nats://" + proxy.Addr()); !shared(first, moved) {
		t.Errorf("at another address the cluster is %q, and was %q", moved, first)
	}
	if another := names(other.URL()); shared(first, another) {
		t.Errorf("two servers are %q and %q", first, another)
	}
	if err := js.DeleteStream(t.Context(), "ORDERS"); err != nil {
		t.Fatal(err)
	}
	stream(server.URL())
	if again := names(server.URL(), other.URL()); !shared(first, again) {
		t.Errorf("with the stream made anew it is %q, and was %q", again, first)
	}
}
