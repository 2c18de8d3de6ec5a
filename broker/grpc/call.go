package grpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/broker/internal/inorder"
	"github.com/pgoutbox/outbox/broker/internal/search"
	"github.com/pgoutbox/outbox/format"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// call is one Publish: usually one stream, on which one goroutine sends while another receives the answers.
type call struct {
	broker *Broker

	mu sync.Mutex
	*inorder.Batch
	order  []int32 // messages sent on the stream, by sequence
	search search.Budget
}

// run delivers on l. It returns why messages have no outcome, or nil if the server left them out.
func (c *call) run(ctx context.Context, l *link) error {
	client := outboxpb.NewDeliveryClient(l.conn)
	if !c.broker.unary.Load() {
		err := c.stream(ctx, l, client)
		switch {
		case err == nil:
			return nil
		case status.Code(err) == codes.Unimplemented:
			if !c.broker.unary.Swap(true) {
				c.broker.cfg.Logger.Warn("the server has no streams, delivering with single requests", "target", c.broker.target)
			}
		case !ofOneMessage(err):
			return c.broker.cfg.broken(err)
		}
		// Messages without an outcome are sent again, in requests that can be told apart.
	}
	return c.requests(ctx, l, client)
}

var errSilent = errors.New("silence")

// stream delivers all messages on one stream and settles those that are answered. It returns the stream's error.
func (c *call) stream(ctx context.Context, l *link, client outboxpb.DeliveryClient) error {
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(c.broker.cfg.AckTimeout, func() { cancel(errSilent) })
	defer silence.Stop()

	stream, err := client.Stream(limited)
	if err != nil {
		return c.explain(limited, l, err)
	}
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel(nil) // unblocks a sender that is stuck
	sender.Go(func() {
		w := &writer{call: c, bytes: min(requestBytes, c.broker.most())}
		for req := w.next(); req != nil; req = w.next() {
			if stream.Send(req) != nil {
				return // the receiving side gets the error
			}
		}
		_ = stream.CloseSend() // always nil, by its contract
	})
	for {
		resp, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return c.explain(limited, l, err)
		}
		silence.Reset(c.broker.cfg.AckTimeout)
		c.answered(nil, resp.GetOutcomes())
	}
}

// explain returns what ended a call: its context, silence, or the library's error.
func (c *call) explain(ctx context.Context, l *link, err error) error {
	switch cause := context.Cause(ctx); {
	case cause == errSilent:
		c.broker.retire(l)
		return status.Errorf(codes.DeadlineExceeded, "no answer within %v", c.broker.cfg.AckTimeout)
	case cause != nil:
		return status.Errorf(codes.Canceled, "gave up waiting for answers: %v", cause)
	}
	return err
}

// answered settles messages. Sequences are indexes into order, or into everything that was sent if order is nil. A
// second answer to a message has no effect.
func (c *call) answered(order []int32, outcomes []*outboxpb.Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if order == nil {
		order = c.order
	}
	for _, o := range outcomes {
		if n := o.GetSequence(); n >= 0 && n < int64(len(order)) {
			i := order[n]
			c.Settle(i, c.broker.cfg.outcome(o, c.Messages[i].Topic))
		}
	}
}

// requests delivers the messages without an outcome by the unary method, one request after another.
func (c *call) requests(ctx context.Context, l *link, client outboxpb.DeliveryClient) error {
	w := &writer{call: c}
	for {
		w.bytes = c.broker.most()
		c.order = c.order[:0]
		req := w.next()
		if req == nil {
			return nil
		}
		if err := c.request(ctx, l, client, req.GetMessages(), c.order); err != nil {
			return c.broker.cfg.broken(err)
		}
	}
}

// request delivers messages in one request; order has their indexes in the batch. If the request fails, possibly
// because of one message, it is halved until that message is found. The returned error concerns all remaining messages.
func (c *call) request(ctx context.Context, l *link, client outboxpb.DeliveryClient, messages []*outboxpb.Message, order []int32) error {
	limited, cancel := context.WithTimeoutCause(ctx, c.broker.cfg.AckTimeout, errSilent)
	defer cancel()
	resp, err := client.Deliver(limited, &outboxpb.DeliverRequest{Messages: messages})
	switch {
	case err == nil:
		c.answered(order, resp.GetOutcomes())
		return nil
	case limited.Err() != nil || !ofOneMessage(err):
		return c.explain(limited, l, err)
	case len(order) == 1:
		s := status.Convert(err)
		c.answered(order, []*outboxpb.Outcome{{Code: int32(s.Code()), Error: s.Message()}})
		return nil
	}
	if ofSize(err) {
		c.broker.refusedSize(proto.Size(&outboxpb.DeliverRequest{Messages: messages}))
	}
	if !c.search.Spend(2) {
		c.undecided(order)
		return nil
	}
	half := len(order) / 2
	if err := c.request(ctx, l, client, messages[:half], order[:half]); err != nil {
		return err
	}
	messages, order = c.unsettled(messages[half:], order[half:])
	if len(order) == 0 {
		return nil
	}
	return c.request(ctx, l, client, messages, order)
}

// undecided leaves messages to the next call.
func (c *call) undecided(order []int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range order {
		c.Settle(i, search.ErrUndecided)
	}
}

// unsettled returns the messages whose keys have no earlier failure.
func (c *call) unsettled(messages []*outboxpb.Message, order []int32) (left []*outboxpb.Message, at []int32) {
	for n, i := range order {
		if !c.Settled(i) {
			left, at = append(left, messages[n]), append(at, i)
		}
	}
	return left, at
}

// writer puts the messages of a call without an outcome into requests.
type writer struct {
	call   *call
	bytes  int // the size at which a request is closed; a single message may have more
	at     int32
	req    outboxpb.DeliverRequest
	pool   []*outboxpb.Message // one for each message of a request
	record format.Record
}

// next returns the next request, valid until the next call; nil at the end.
func (w *writer) next() *outboxpb.DeliverRequest {
	c := w.call
	c.mu.Lock()
	defer c.mu.Unlock()
	w.req.Messages = w.req.Messages[:0]
	w.record.Reset()
	size := 0
	for ; int(w.at) < len(c.Messages) && len(w.req.Messages) < c.broker.cfg.RequestMessages && size < w.bytes; w.at++ {
		if c.Settled(w.at) {
			continue
		}
		place := len(w.req.Messages)
		if place == len(w.pool) {
			w.pool = append(w.pool, &outboxpb.Message{})
		}
		p := w.pool[place]
		err := c.broker.cfg.encode(p, c.Messages[w.at], &w.record)
		n := 0
		if err == nil {
			n, err = c.broker.cfg.size(p)
		}
		if err != nil {
			c.Settle(w.at, err)
			continue
		}
		if place > 0 && size+n > c.broker.most() {
			break
		}
		size += n
		w.req.Messages = append(w.req.Messages, p)
		c.Take(w.at)
		c.order = append(c.order, w.at)
	}
	if len(w.req.Messages) == 0 {
		return nil
	}
	return &w.req
}

// size returns the size of p in a request, or a permanent error if no request can hold it.
func (cfg *Config) size(p *outboxpb.Message) (int, error) {
	const envelope = 8 // its tag and length in the request
	n := proto.Size(p) + envelope
	if n > cfg.MaxMessageBytes {
		return 0, outbox.Permanent(fmt.Errorf("grpc: the message takes %d bytes, and the server %d at most; raise the "+
			"limit of both ends, or write a smaller message",
			n, cfg.MaxMessageBytes))
	}
	return n, nil
}
