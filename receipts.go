package outbox

import "context"

// Receipt is where a broker has put a message.
type Receipt struct {
	Partition int32
	Offset    int64 // within the partition
}

type receiptsKey struct{}

// WithReceipts returns a context for calls to a broker: one that knows where it has put messages tells accepted
// of each that it has accepted, before the call returns, in the goroutine of the call. Kafka's does. Whoever
// doesn't ask pays nothing.
func WithReceipts(ctx context.Context, accepted func(id ID, r Receipt)) context.Context {
	return context.WithValue(ctx, receiptsKey{}, accepted)
}

// ReceiptsWanted returns what WithReceipts was given, for a broker to call; nil if it is not wanted.
func ReceiptsWanted(ctx context.Context) func(id ID, r Receipt) {
	accepted, _ := ctx.Value(receiptsKey{}).(func(ID, Receipt))
	return accepted
}
