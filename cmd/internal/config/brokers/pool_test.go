package brokers

import (
	"io"
	"log/slog"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	records "github.com/pgoutbox/outbox/format"
)

// Destinations that say the same of their broker share a client, which is closed when the last of them ends.
func TestDestinationsShareABrokersClient(t *testing.T) {
	t.Parallel()
	pool := &Pool{Logger: slog.New(slog.DiscardHandler)}
	open := func(change func(*Kafka, *Opening)) io.Closer {
		t.Helper()
		kafka, o := fields.Default[Kafka](), Opening{Pool: pool, Logger: pool.Logger}
		kafka.Brokers = []string{"127.0.0.1:1"}
		kafka.SASL.User, kafka.SASL.Password = "relay", scalar.NewSecret("first")
		if change != nil {
			change(&kafka, &o)
		}
		_, closer, err := pool.Open(&kafka, o)
		if err != nil {
			t.Fatal(err)
		}
		return closer
	}
	clients := func(want int) {
		t.Helper()
		if len(pool.clients) != want {
			t.Fatalf("%d clients, want %d", len(pool.clients), want)
		}
	}
	first, second := open(nil), open(func(_ *Kafka, o *Opening) { o.Name = "another" })
	clients(1)
	password := open(func(k *Kafka, _ *Opening) { k.SASL.Password = scalar.NewSecret("second") })
	clients(2)
	events := func(_ *Kafka, o *Opening) { o.Format = records.CloudEvents{} }
	format, same := open(events), open(events)
	clients(3)
	alone := open(func(k *Kafka, _ *Opening) { k.ExactlyOnce = true })
	clients(3)
	_, ours := alone.(Coupled)
	if _, theirs := first.(*use).client.Broker.(Coupled); !ours || theirs {
		t.Error("the exactly-once client is not the destination's own")
	}
	groups := open(func(_ *Kafka, o *Opening) { o.Groups = mostShared - 1 }) // it would be one too many beside the others
	clients(4)
	for _, b := range []io.Closer{password, format, same, alone, groups, first, first} { // the second Close of one counts once
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	clients(1)
	third := open(nil)
	clients(1)
	for _, b := range []io.Closer{second, third} {
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	clients(0)

	if _, _, err := pool.Open(&Kafka{}, Opening{Pool: pool, Logger: pool.Logger}); err == nil {
		t.Error("a client without addresses was opened")
	}
	clients(0)
}
