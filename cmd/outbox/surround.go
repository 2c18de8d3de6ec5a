package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/broker/registry"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/around"
)

// surround puts around a destination's broker what its configuration asks for: routing and framing, the
// rate limit, the circuit breaker.
func surround(broker relay.Broker, d config.Destination) (relay.Broker, error) {
	rules, err := d.Table().Parse()
	if err != nil {
		return nil, fmt.Errorf("route: %w", err)
	}
	var steps []around.Step
	if !rules.Idle() {
		steps = append(steps, around.Routing(rules))
	}
	if d.SchemaRegistry != nil {
		framer, err := openRegistry(d.SchemaRegistry)
		if err != nil {
			return nil, err
		}
		steps = append(steps, framer.Frame) // behind routing, since subjects have the topic's name
	}
	if len(steps) > 0 {
		broker = around.Steps(broker, rules.Headers(), steps...)
	}
	if d.Rate > 0 {
		broker = around.Pace(broker, d.Rate)
	}
	if d.Delivery.Outage.After > 0 {
		broker = around.Breaker(broker, d.Delivery.Outage.After)
	}
	return broker, nil
}

func openRegistry(r *config.SchemaRegistry) (*registry.Framer, error) {
	secured, err := tlsConfig(r.TLS)
	if err != nil {
		return nil, err
	}
	cfg := registry.Config{
		URLs: r.URLs, Username: r.Username, Password: r.Password.Text(), Token: r.Token.Text(), TLS: secured,
		Subject: r.Subject, IDHeader: r.IDHeader, IndexHeader: r.IndexHeader, Protobuf: r.Protobuf, Register: r.Register,
		Refresh: r.Refresh, Timeout: r.Timeout,
	}
	var faults []error
	for _, s := range r.Schemas {
		text, err := s.Read()
		faults = append(faults, err)
		cfg.Schemas = append(cfg.Schemas, registry.Schema{Subject: s.Subject, Type: s.Type, Text: text})
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return registry.New(cfg)
}

// paced bounds what a destination with a rate limit reads ahead: a batch is a tenth of a second's worth, so
// that a call doesn't last, and everything in flight can be sent in half of the time that a shutdown waits.
func paced(d config.Destination) config.Delivery {
	c := d.Delivery
	if d.Rate == 0 {
		return c
	}
	c.Batch = min(c.Batch, max(1, d.Rate/10))
	inTime := int(int64(d.Rate) * int64(d.DrainTimeout/2) / int64(time.Second))
	c.MaxInFlight = max(2*c.Batch, min(c.MaxInFlight, inTime))
	return c
}
