package sqs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/amazon"
)

// Broker publishes to SQS. It satisfies relay.Broker and relay.Pinger, and is safe for concurrent use.
type Broker struct {
	cfg       Config
	names     *amazon.Names
	client    *sqs.Client
	transport *http.Transport
	publisher *amazon.Publisher
	closed    atomic.Bool
}

// New returns a broker. It checks cfg and reports all its faults together. It doesn't connect: that is
// what Ping is for, or the first Publish.
func New(cfg Config) (*Broker, error) {
	cfg, names, sdk, transport, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("sqs: %w", err)
	}
	b := &Broker{cfg: cfg, names: names, transport: transport}
	b.client = sqs.NewFromConfig(sdk)
	b.publisher = amazon.NewPublisher(service{b}, amazon.Settings{
		Names:        names,
		Payload:      amazon.Payload(cfg.Payload),
		Records:      cfg.records,
		Requests:     cfg.Requests,
		Timeout:      cfg.Timeout,
		LargestLimit: requestBytes,
	})
	return b, nil
}

// Publish sends batch as relay.Broker demands. The document docs/brokers/sqs.md says which error has
// which kind, and why.
func (b *Broker) Publish(ctx context.Context, batch []*outbox.Message) []error {
	return b.publisher.Publish(ctx, batch)
}

// Ping reports whether SQS answers and takes the credentials, and whether the queues exist that the
// configuration names without a field, and if not, why.
func (b *Broker) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	if err := b.usable(); err != nil {
		return err
	}
	fixed := b.names.Fixed()
	for _, name := range fixed {
		if _, err := (service{b}).Find(ctx, name); err != nil {
			return outbox.Unavailable(err)
		}
	}
	if len(fixed) > 0 {
		return nil
	}
	_, err := b.client.ListQueues(ctx, &sqs.ListQueuesInput{MaxResults: aws.Int32(1)})
	if err == nil || amazon.IsDenied(err) { // whoever may not ask was recognised
		return nil
	}
	return outbox.Unavailable(amazon.Classify("sqs: ask for the queues", err))
}

// Close closes idle connections. No Publish runs any more. It may be called more than once.
func (b *Broker) Close() error {
	b.closed.Store(true)
	b.transport.CloseIdleConnections()
	return nil
}

func (b *Broker) usable() error {
	if b.closed.Load() {
		return outbox.Unavailable(errors.New("sqs: the broker is closed"))
	}
	return nil
}

// service is SQS as the publisher sees it.
type service struct{ *Broker }

var _ amazon.Service = service{}

// Send sends a request.
func (s service) Send(ctx context.Context, queue *amazon.Target, entries []amazon.Entry) ([]error, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	input := &sqs.SendMessageBatchInput{
		QueueUrl: &queue.Address,
		Entries:  make([]types.SendMessageBatchRequestEntry, len(entries)),
	}
	for i := range entries {
		e := &entries[i]
		input.Entries[i] = types.SendMessageBatchRequestEntry{
			Id:                aws.String(strconv.Itoa(i)),
			MessageBody:       &e.Body,
			MessageAttributes: attributes(e.Attributes),
		}
		if queue.FIFO {
			input.Entries[i].MessageGroupId = &e.Group
			input.Entries[i].MessageDeduplicationId = &e.ID
		}
	}
	output, err := s.client.SendMessageBatch(ctx, input)
	if err != nil {
		return nil, amazon.Classify(fmt.Sprintf("sqs: send to queue %q", queue.Name), err)
	}
	outcomes := amazon.NewOutcomes(fmt.Sprintf("sqs: queue %q", queue.Name), len(entries))
	for i := range output.Successful {
		outcomes.Accepted(output.Successful[i].Id)
	}
	for i := range output.Failed {
		f := &output.Failed[i]
		outcomes.Failed(f.Id, f.Code, f.Message, f.SenderFault)
	}
	return outcomes.Errors(), nil
}

func attributes(list []amazon.Attribute) map[string]types.MessageAttributeValue {
	all := make(map[string]types.MessageAttributeValue, len(list))
	for i := range list {
		all[list[i].Name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &list[i].Value}
	}
	return all
}
