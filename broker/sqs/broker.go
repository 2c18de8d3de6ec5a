package sqs

import (
	"context"
	"fmt"
	"strconv"

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
		amazon.Settings{Common: common, Service: "sqs", Transport: transport, Names: names, LargestLimit: requestBytes}, nil
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

// Send sends a request.
func (s *service) Send(ctx context.Context, queue *amazon.Target, entries []amazon.Entry) ([]error, error) {
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
