package config

import (
	"log/slog"
	"testing"
)

// Destinations that say the same of their broker share a client, which is closed when the last of them ends.
func TestDestinationsShareABrokersClient(t *testing.T) {
	t.Parallel()
	pool := &Pool{Logger: slog.New(slog.DiscardHandler)}
	open := func(change func(*Destination)) *Opened {
		t.Helper()
		d := Standard[Destination]()
		kafka := Standard[Kafka]()
		d.Broker.Kafka = &kafka
		d.Broker.Kafka.Brokers = []string{"127.0.0.1:1"}
		d.Broker.Kafka.SASL.User, d.Broker.Kafka.SASL.Password = "relay", NewSecret("first")
		if change != nil {
			change(&d)
		}
		opened, err := d.Open(Opening{Pool: pool, Logger: pool.Logger})
		if err != nil {
			t.Fatal(err)
		}
		return opened
	}
	clients := func(want int) {
		t.Helper()
		if len(pool.clients) != want {
			t.Fatalf("%d clients, want %d", len(pool.clients), want)
		}
	}
	first, second := open(nil), open(func(d *Destination) { d.Name, d.Topics = "another", []string{"orders.*"} })
	clients(1)
	password := open(func(d *Destination) { d.Broker.Kafka.SASL.Password = NewSecret("second") })
	clients(2)
	events := func(d *Destination) { d.Format.CloudEvents = &CloudEvents{} }
	format, same := open(events), open(events)
	clients(3)
	alone := open(func(d *Destination) { d.Broker.Kafka.ExactlyOnce = true })
	clients(3)
	if alone.Coupled == nil || first.Coupled != nil {
		t.Error("the exactly-once client is not the destination's own")
	}
	groups := open(func(d *Destination) { d.ShardGroups = mostShared - 1 }) // it would be one too many beside the others
	clients(4)
	for _, b := range []*Opened{password, format, same, alone, groups, first, first} { // the second Close of one counts once
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	clients(1)
	third := open(nil)
	clients(1)
	for _, b := range []*Opened{second, third} {
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	clients(0)

	d := Standard[Destination]()
	d.Broker.Kafka = &Kafka{}
	if _, err := d.Open(Opening{Pool: pool, Logger: pool.Logger}); err == nil {
		t.Error("a client without addresses was opened")
	}
	clients(0)
}
