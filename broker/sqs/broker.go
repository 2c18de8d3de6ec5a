package sqs

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox/broker/internal/amazon"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Broker publishes to SQS. It satisfies relay.Broker and relay.Pinger, and is safe for concurrent use.
// docs/brokers/sqs.md lists the kind of each error of Publish, and why. Ping checks that SQS answers and accepts the
// credentials, and that the queues exist that the configuration names without a field; it returns the reason if not.
// Close closes idle connections; no Publish may be running, and it may be called more than once.
type Broker struct{ *amazon.Broker }

// New returns a broker. It checks cfg and reports all its faults together. It doesn't connect; Ping and the first
// Publish do.
func New(cfg Config) (*Broker, error) {
	s, of, err := cfg.open()
	if err != nil {
		return nil, err
	}
	return &Broker{amazon.NewBroker(s, of)}, nil
}

// open returns SQS for cfg, and the settings of a broker.
func (cfg Config) open() (*service, amazon.Settings, error) {
	var faults settings.Faults
	cfg, common, names := cfg.complete(&faults)
	sdk, transport := common.Open(&faults)
	if err := faults.Err(); err != nil {
		return nil, amazon.Settings{}, fmt.Errorf("sqs: %w", err)
	}
	return &service{cfg: cfg, client: sqs.NewFromConfig(sdk)},
		amazon.Settings{
			Common: common, Service: "sqs", Sending: "send to queue", Kind: "queue",
			Transport: transport, Names: names, LargestLimit: requestBytes,
		}, nil
}

// service implements amazon.Service for SQS.
type service struct {
	cfg    Config
	client *sqs.Client
}

var _ amazon.Service = (*service)(nil)

// List requests the queues. A user without that permission was authenticated.
func (s *service) List(ctx context.Context) error {
	_, err := s.client.ListQueues(ctx, &sqs.ListQueuesInput{MaxResults: aws.Int32(1)})
	if amazon.IsDenied(err) {
		return nil
	}
	return amazon.Classify("sqs: ask for the queues", err)
}

// Send implements amazon.Service.
func (s *service) Send(ctx context.Context, queue *amazon.Target, entries []amazon.Entry, answer *amazon.Outcomes) error {
	input := &sqs.SendMessageBatchInput{QueueUrl: &queue.Address}
	for i := range entries {
		e := &entries[i]
		input.Entries = append(input.Entries, types.SendMessageBatchRequestEntry{
			Id: amazon.EntryID(i), MessageBody: &e.Body, MessageGroupId: e.Group, MessageDeduplicationId: e.ID,
			MessageAttributes: amazon.Values(e, func(kind, text *string) types.MessageAttributeValue {
				return types.MessageAttributeValue{DataType: kind, StringValue: text}
			}),
		})
	}
	output, err := s.client.SendMessageBatch(ctx, input)
	if err != nil {
		return err
	}
	for _, a := range output.Successful {
		answer.Accepted(a.Id)
	}
	for _, f := range output.Failed {
		answer.Failed(f.Id, f.Code, f.Message, f.SenderFault)
	}
	return nil
}
