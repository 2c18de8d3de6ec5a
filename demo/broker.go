package main

import "context"

// topic is where the orders service sends its events.
const topic = "orders"

// maxMessage is the largest message that the demo's stream or topic takes. The poison message is larger.
const maxMessage = 64 << 10

// place is a broker as the others know it.
type place struct {
	name    string // with its version
	address string // where a person finds it
	topic   string // what the orders service writes into Message.Topic
	relays  target // what the relays are told of it
}

// broker is what the relays deliver to and the consumer reads from. One goroutine calls takeDown and bringUp at a time.
type broker interface {
	place() place

	// takeDown makes the broker unreachable for the relays, bringUp reachable again at the same address.
	takeDown() error
	bringUp(ctx context.Context) error

	// consume calls received for every message, in the order of reception, until ctx ends; then it returns nil. It gets
	// over outages by itself.
	consume(ctx context.Context, received func(payload []byte)) error

	// caughtUp tells whether consume has seen all that the broker has.
	caughtUp(ctx context.Context) (bool, error)
}
