package main

import "context"

// topic is where the orders service sends its events.
const topic = "orders"

// maxMessage is the largest message that the demo's stream or topic takes. The poison message is larger.
const maxMessage = 64 << 10

// place tells the other parts where the broker is.
type place struct {
	name    string // with its version
	address string // for people
	topic   string // what the orders service writes into Message.Topic
	relays  target // for the relays
}

// broker is what the relays deliver to and the consumer reads from. One goroutine calls takeDown and bringUp at a time.
type broker interface {
	place() place

	// takeDown makes the broker unreachable for the relays; bringUp makes it reachable again at the same address.
	takeDown() error
	bringUp(ctx context.Context) error

	// consume calls received for every message, in the order of reception, until ctx ends; then it returns nil. It
	// survives outages.
	consume(ctx context.Context, received func(payload []byte)) error

	// caughtUp reports whether consume has seen everything that the broker has.
	caughtUp(ctx context.Context) (bool, error)
}
