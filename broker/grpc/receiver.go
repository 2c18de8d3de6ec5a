package grpc

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/settings"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// ReceiverConfig configures a Receiver. The zero value means the stated defaults.
type ReceiverConfig struct {
	// Parallel is how many messages of a stream are received at once. Messages of one key are always received one after
	// another. Default 16.
	Parallel int

	// Timeout bounds the receiving of a message by its context. A failure after that counts against the message;
	// without the timeout, the silence would count as an outage. Default 10 s.
	Timeout time.Duration

	// Logger reports messages that are not accepted. nil: slog.Default.
	Logger *slog.Logger
}

// Receiver serves outbox.v1.Delivery around a function that takes one message. Register it with
// outboxpb.RegisterDeliveryServer. Authentication is up to interceptors.
type Receiver struct {
	outboxpb.UnimplementedDeliveryServer
	receive func(context.Context, *outbox.Message) error
	cfg     ReceiverConfig
}

var _ outboxpb.DeliveryServer = (*Receiver)(nil)

// NewReceiver returns a receiver that calls receive with each message: in order per key, several keys at once. A
// message may come more than once, with the same ID. receive owns the message.
//
// The result of receive decides the answer: nil accepts, a permanent error is INVALID_ARGUMENT, an unavailable one
// UNAVAILABLE, the error of a status its code, any other UNKNOWN, each with the error's text. A pause of
// outbox.RetryAfter is passed on.
func NewReceiver(receive func(context.Context, *outbox.Message) error, cfg ReceiverConfig) (*Receiver, error) {
	if cfg.Parallel == 0 {
		cfg.Parallel = 16
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	cfg.Logger = settings.Logger(cfg.Logger)
	var faults []error
	if receive == nil {
		faults = append(faults, errors.New("a function that receives is needed"))
	}
	if cfg.Parallel < 0 || cfg.Timeout < 0 {
		faults = append(faults, errors.New("Parallel and Timeout can't be negative"))
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("grpc: receiver: %w", errors.Join(faults...))
	}
	return &Receiver{receive: receive, cfg: cfg}, nil
}

// Stream implements outboxpb.DeliveryServer.
func (r *Receiver) Stream(stream grpc.BidiStreamingServer[outboxpb.DeliverRequest, outboxpb.DeliverResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	s := r.begin(ctx)
	var answers sync.WaitGroup
	answers.Go(func() {
		for outcomes := range s.outcomes() {
			if stream.Send(&outboxpb.DeliverResponse{Outcomes: outcomes}) != nil {
				cancel() // the stream is broken: start nothing more
			}
		}
	})
	var err error
	for {
		var req *outboxpb.DeliverRequest
		if req, err = stream.Recv(); err != nil {
			break
		}
		s.take(req.GetMessages())
	}
	s.end()
	answers.Wait()
	if err == io.EOF {
		return nil
	}
	return err
}

// Deliver implements outboxpb.DeliveryServer.
func (r *Receiver) Deliver(ctx context.Context, req *outboxpb.DeliverRequest) (*outboxpb.DeliverResponse, error) {
	s := r.begin(ctx)
	resp := &outboxpb.DeliverResponse{}
	var answers sync.WaitGroup
	answers.Go(func() {
		for outcomes := range s.outcomes() {
			resp.Outcomes = append(resp.Outcomes, outcomes...)
		}
	})
	s.take(req.GetMessages())
	s.end()
	answers.Wait()
	return resp, nil
}

// session is the state of one stream or request. Each key belongs to one worker, which remembers the keys that have
// failed.
type session struct {
	receiver *Receiver
	seed     maphash.Seed
	next     int64
	lanes    []chan job
	workers  sync.WaitGroup

	mu    sync.Mutex
	done  []*outboxpb.Outcome
	ended bool
	wake  chan struct{} // capacity 1
}

type job struct {
	sequence int64
	message  *outboxpb.Message
}

func (r *Receiver) begin(ctx context.Context) *session {
	s := &session{receiver: r, seed: maphash.MakeSeed(), lanes: make([]chan job, r.cfg.Parallel), wake: make(chan struct{}, 1)}
	for i := range s.lanes {
		s.lanes[i] = make(chan job, 16)
		s.workers.Go(func() { s.work(ctx, s.lanes[i]) })
	}
	return s
}

// take passes messages to the workers, and waits when they are behind.
func (s *session) take(messages []*outboxpb.Message) {
	for _, m := range messages {
		lane := uint64(s.next)
		if key := orderingKey(m); key != "" {
			lane = maphash.String(s.seed, key)
		}
		s.lanes[lane%uint64(len(s.lanes))] <- job{s.next, m}
		s.next++
	}
}

// end waits until everything that was taken has an outcome.
func (s *session) end() {
	for _, lane := range s.lanes {
		close(lane)
	}
	s.workers.Wait()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.signal()
}

func (s *session) work(ctx context.Context, lane <-chan job) {
	broken := map[string]bool{}
	for j := range lane {
		key := orderingKey(j.message)
		o := &outboxpb.Outcome{Sequence: j.sequence}
		switch {
		case broken[key]:
			o.Code, o.Error = int32(codes.Aborted), "an earlier message of its key was not accepted"
		default:
			if err := s.receiver.accept(ctx, j.message); err != nil {
				refuse(o, err)
				broken[key] = key != ""
			}
		}
		s.mu.Lock()
		s.done = append(s.done, o)
		s.mu.Unlock()
		s.signal()
	}
}

func (s *session) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// outcomes yields the outcomes until the end, each time as many as are available.
func (s *session) outcomes() func(yield func([]*outboxpb.Outcome) bool) {
	return func(yield func([]*outboxpb.Outcome) bool) {
		for range s.wake {
			s.mu.Lock()
			done, ended := s.done, s.ended
			s.done = nil
			s.mu.Unlock()
			if len(done) > 0 && !yield(done) || ended {
				return
			}
		}
	}
}

func (r *Receiver) accept(ctx context.Context, p *outboxpb.Message) error {
	if ctx.Err() != nil {
		return outbox.Unavailable(ctx.Err()) // the caller has stopped waiting
	}
	m, err := decode(p)
	if err != nil {
		return outbox.Permanent(err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	if err := r.receive(ctx, m); err != nil {
		r.cfg.Logger.Warn("message not accepted", append(printed.Message(m), "error", err)...)
		return err
	}
	return nil
}

func refuse(o *outboxpb.Outcome, err error) {
	code := codes.Unknown
	var coded interface{ GRPCStatus() *status.Status }
	switch {
	case outbox.IsPermanent(err):
		code = codes.InvalidArgument
	case outbox.IsUnavailable(err):
		code = codes.Unavailable
	case errors.As(err, &coded) && coded.GRPCStatus().Code() != codes.OK:
		code = coded.GRPCStatus().Code()
	}
	o.Code, o.Error = int32(code), err.Error()
	if pause := outbox.RetryDelay(err); pause > 0 {
		o.RetryAfter = durationpb.New(pause)
	}
}
