package sqs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/internal/amazon"
	"github.com/pgoutbox/outbox/broker/internal/lanes"
	"github.com/pgoutbox/outbox/internal/settings"
)

// ConsumerConfig configures what a Consumer reads. Queue is required.
type ConsumerConfig struct {
	// Queue is the name of the queue. Processes that read the same queue share its messages. A FIFO queue keeps the
	// order of a key across them; a standard queue keeps none.
	Queue string

	// Visibility is the time after which the service gives a dead process's message to another. Living processes extend
	// it. Default 30 s, at least 1 s.
	Visibility time.Duration

	// Handling configures how messages are handled. MaxInFlight is 100 by default: every message that is here and not
	// deleted must be kept hidden, by a request for every ten of them three times in Visibility. A rejected message
	// comes again after Visibility, until the queue's redrive policy moves it; without one, forever.
	Handling consume.Config
}

// Consumer passes the messages of a queue to a handler.
type Consumer struct {
	service   *service
	transport *http.Transport
	cfg       ConsumerConfig
	engine    *lanes.Engine
}

const (
	mostAtOnce = 10 // messages per request
	longPoll   = 5 * time.Second
	lagEvery   = time.Minute // between queries for the queue's length
)

// NewConsumer returns a Consumer. conn configures the connection; its options for publishing are ignored. It reports
// all faults together and doesn't connect.
func NewConsumer(conn Config, cfg ConsumerConfig, handler consume.Handler) (*Consumer, error) {
	var faults settings.Faults
	faults.Need(cfg.Queue != "", "Queue", "not given; name the queue")
	settings.Within(&faults, "Visibility", &cfg.Visibility, 30*time.Second, time.Second, 12*time.Hour)
	settings.Default(&cfg.Handling.MaxInFlight, 100)
	engine := lanes.New(&faults, &cfg.Handling, conn.Logger, handler, lanes.Abilities{Later: true, Reject: true})
	conn.Timeout = max(conn.Timeout, longPoll+amazon.DefaultTimeout)
	service, of, err := conn.open()
	faults.Add("", err)
	if err := faults.Err(); err != nil {
		return nil, fmt.Errorf("sqs: consumer: %w", err)
	}
	return &Consumer{service: service, transport: of.Transport, cfg: cfg, engine: engine}, nil
}

// Run consumes until ctx ends. Then it waits for running handlers, returns unhandled messages to the queue, and returns
// nil. It continues after every failure of the service. It returns an error if it can't continue: too many handlers
// hang (consume.ErrHung). A Consumer runs once.
func (c *Consumer) Run(ctx context.Context) error { return c.engine.Run(ctx, c.run) }

func (c *Consumer) run(ctx context.Context) error {
	defer c.transport.CloseIdleConnections()
	s := &session{Consumer: c, group: c.engine.Group(), open: map[*lanes.Delivery]*string{}}
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	var beat sync.WaitGroup
	beat.Go(func() { s.prolong(beating) })
	err := s.receive(ctx)
	s.group.Drain()
	s.giveBack(context.WithoutCancel(ctx))
	stop()
	beat.Wait()
	return errors.Join(err, c.engine.Hung())
}

// session is the state of one Run.
type session struct {
	*Consumer
	group *lanes.Group
	queue string // its URL

	lagAt time.Time // when the queue's length was last queried

	mu       sync.Mutex
	open     map[*lanes.Delivery]*string // receipt handles of messages that aren't settled
	returned []*string
}

func (s *session) receive(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() {
		select {
		case err := <-s.engine.Failed():
			cancel(err)
		case <-ctx.Done():
		}
		s.group.Stop()
	})
	failures := 0
	for ctx.Err() == nil {
		free := s.group.Room(ctx, s.cfg.Handling.MaxInFlight)
		if free == 0 {
			break
		}
		err := s.once(ctx, free)
		if err == nil {
			failures = 0
			continue
		}
		if ctx.Err() != nil {
			break
		}
		failures++
		s.cfg.Handling.Logger.Warn("receiving failed", "queue", s.cfg.Queue, "error", err)
		select {
		case <-time.After(min(100*time.Millisecond<<min(failures, 10), 5*time.Second)):
		case <-ctx.Done():
		}
	}
	if err := context.Cause(ctx); errors.Is(err, consume.ErrHung) {
		return err
	}
	return nil
}

// once requests messages. A request isn't cancelled when ctx ends: the messages that it takes from the queue would be
// hidden until Visibility is over. So the last one is awaited, as long as it may look for messages.
func (s *session) once(ctx context.Context, free int) error {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.service.cfg.Timeout)
	defer cancel()
	if s.queue == "" {
		url, err := s.service.address(asking, s.cfg.Queue, true)
		if err != nil {
			return err
		}
		s.queue = url
	}
	if time.Since(s.lagAt) >= lagEvery && s.engine.Observed() {
		s.lagAt = time.Now()
		s.lag(asking)
	}
	wait := longPoll
	if s.group.Held() > 0 {
		wait = time.Second
	}
	output, err := s.service.client.ReceiveMessage(asking, &sqs.ReceiveMessageInput{
		QueueUrl: &s.queue, MaxNumberOfMessages: int32(min(free, mostAtOnce)), WaitTimeSeconds: int32(wait / time.Second),
		VisibilityTimeout: int32(s.cfg.Visibility / time.Second), MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameApproximateReceiveCount, types.MessageSystemAttributeNameMessageGroupId,
			types.MessageSystemAttributeNameMessageDeduplicationId},
	})
	if err != nil {
		return amazon.Classify(fmt.Sprintf("sqs: receive from queue %q", s.cfg.Queue), err)
	}
	for i := range output.Messages {
		s.take(&output.Messages[i])
	}
	return nil
}

// lag reports to the observer about how many messages no consumer has received.
func (s *session) lag(ctx context.Context) {
	const waiting = types.QueueAttributeNameApproximateNumberOfMessages
	output, err := s.service.client.GetQueueAttributes(ctx,
		&sqs.GetQueueAttributesInput{QueueUrl: &s.queue, AttributeNames: []types.QueueAttributeName{waiting}})
	if err == nil {
		var n int64
		if n, err = strconv.ParseInt(output.Attributes[string(waiting)], 10, 64); err == nil {
			s.engine.Lag(s.cfg.Queue, n)
		}
	}
	if err != nil {
		s.cfg.Handling.Logger.Warn("the length of the queue is unknown", "queue", s.cfg.Queue, "error", err)
	}
}

func (s *session) take(got *types.Message) {
	d := &lanes.Delivery{Source: s.cfg.Queue + "@" + aws.ToString(got.MessageId)}
	d.Message, d.Err = decode(strings.TrimSuffix(s.cfg.Queue, amazon.FIFO), got)
	if n, err := strconv.Atoi(got.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)]); err == nil {
		d.Attempts = max(n-1, 0)
	}
	s.engine.Decode(d)
	d.Settle = func(o consume.Outcome, pause time.Duration) error {
		s.mu.Lock()
		delete(s.open, d)
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), s.service.cfg.Timeout)
		defer cancel()
		switch o {
		case consume.Done:
			_, err := s.service.client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &s.queue, ReceiptHandle: got.ReceiptHandle})
			return err
		case consume.Later:
			return s.visibility(ctx, got.ReceiptHandle, pause)
		case consume.Rejected: // the service counts messages that are not deleted
		default:
			s.mu.Lock()
			s.returned = append(s.returned, got.ReceiptHandle)
			s.mu.Unlock()
		}
		return nil
	}
	s.mu.Lock()
	s.open[d] = got.ReceiptHandle
	s.mu.Unlock()
	s.group.Add(d)
}

// giveBack makes unhandled messages visible to other consumers. A FIFO queue keeps its order by itself.
func (s *session) giveBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.service.cfg.Timeout)
	defer cancel()
	for _, handle := range s.returned {
		if err := s.visibility(ctx, handle, 0); err != nil {
			return // they become visible when their time is over
		}
	}
}

func (s *session) visibility(ctx context.Context, handle *string, d time.Duration) error {
	_, err := s.service.client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: &s.queue, ReceiptHandle: handle, VisibilityTimeout: int32((d + time.Second - 1) / time.Second),
	})
	return err
}

// prolong extends the invisibility of messages that are being worked on.
func (s *session) prolong(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Visibility / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		handles := make([]*string, 0, len(s.open)+len(s.returned))
		for _, handle := range s.open {
			handles = append(handles, handle)
		}
		handles = append(handles, s.returned...)
		s.mu.Unlock()
		for len(handles) > 0 {
			n := min(len(handles), mostAtOnce)
			entries := make([]types.ChangeMessageVisibilityBatchRequestEntry, n)
			for i := range n {
				entries[i] = types.ChangeMessageVisibilityBatchRequestEntry{
					Id: aws.String(strconv.Itoa(i)), ReceiptHandle: handles[i], VisibilityTimeout: int32(s.cfg.Visibility / time.Second),
				}
			}
			handles = handles[n:]
			asking, cancel := context.WithTimeout(ctx, s.cfg.Visibility*2/3)
			_, err := s.service.client.ChangeMessageVisibilityBatch(asking,
				&sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &s.queue, Entries: entries})
			cancel()
			if err != nil && ctx.Err() == nil {
				s.cfg.Handling.Logger.Debug("messages may be delivered to others as well", "queue", s.cfg.Queue, "error", err)
			}
		}
	}
}
