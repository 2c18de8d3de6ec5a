package outbox

import "context"

// Receipt is where a broker has put a message.
type Receipt struct {
	Partition int32
	Offset    int64 // within the partition
}

type receiptsKey struct{}

// WithReceipts returns a context for calls to a broker. A broker that knows where it has put a message calls accepted
// for each message that it has accepted, before the call returns, in the goroutine of the call. Kafka's does. Callers
// without it pay nothing.
func WithReceipts(ctx context.Context, accepted func(id ID, r Receipt)) context.Context {
	return context.WithValue(ctx, receiptsKey{}, accepted)
}

// ReceiptsWanted returns the function that WithReceipts was given, for a broker to call; nil if there is none.
func ReceiptsWanted(ctx context.Context) func(id ID, r Receipt) {
	accepted, _ := ctx.Value(receiptsKey{}).(func(ID, Receipt))
	return accepted
}
