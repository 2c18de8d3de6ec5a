//go:build !kafka

package main

import (
	"context"
	"fmt"

	"github.com/pgoutbox/outbox/relay"
)

// Kafka's client would take a sixth of the time that the demo takes to compile, so it needs a tag.

func openKafka(_ context.Context, _ *undo, given string) (broker, error) {
	return nil, fmt.Errorf("--kafka: this demo is built without Kafka's client: go run -tags kafka ./demo --kafka %s", given)
}

func kafkaRelay(t target) (relay.Broker, error) {
	_, err := openKafka(context.Background(), nil, t.Kafka[0])
	return nil, err
}
