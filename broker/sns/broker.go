package sns

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/pgoutbox/outbox/broker/internal/amazon"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Broker publishes to SNS. It satisfies relay.Broker and relay.Pinger, and is safe for concurrent use.
// docs/brokers/sns.md lists the kind of each error of Publish, and why. Ping checks that SNS answers and accepts the
// credentials, and that the topics exist that the configuration names without a field; it returns the reason if not.
// Close closes idle connections; no Publish may be running, and it may be called more than once.
type Broker struct{ *amazon.Broker }

// New returns a broker. It checks cfg and reports all its faults together. It doesn't connect; Ping and the first
// Publish do.
func New(cfg Config) (*Broker, error) {
	var faults settings.Faults
	cfg, common, names := cfg.complete(&faults)
	sdk, transport := common.Open(&faults)
	if err := faults.Err(); err != nil {
		return nil, fmt.Errorf("sns: %w", err)
	}
	return &Broker{amazon.NewBroker(&service{cfg: cfg, names: names, client: sns.NewFromConfig(sdk)}, amazon.Settings{
		Common: common, Service: "sns", Sending: "publish to topic", Kind: "topic",
		Transport: transport, Names: names, LargestLimit: largestLimit,
	})}, nil
}

// service implements amazon.Service for SNS.
type service struct {
	cfg    Config
	names  *amazon.Names
	client *sns.Client
}

var _ amazon.Service = (*service)(nil)

// List requests the topics. A user without that permission was authenticated.
func (s *service) List(ctx context.Context) error {
	_, err := s.client.ListTopics(ctx, &sns.ListTopicsInput{})
	if amazon.IsDenied(err) {
		return nil
	}
	return amazon.Classify("sns: ask for the topics", err)
}

// Find implements amazon.Service. The name is the topic's ARN.
func (s *service) Find(ctx context.Context, name string, create bool) (*amazon.Target, error) {
	isFIFO := strings.HasSuffix(name, amazon.FIFO)
	topic := &amazon.Target{Name: name, Address: name, FIFO: isFIFO, Limit: defaultLimit, Request: defaultLimit}
	output, err := s.client.GetTopicAttributes(ctx, &sns.GetTopicAttributesInput{TopicArn: &name})
	switch {
	case amazon.IsDenied(err):
		s.cfg.Logger.Debug("topic settings not checked", "topic", name, "error", err)
		return topic, nil
	case amazon.IsMissing(err) && s.cfg.CreateTopics && !create:
		return nil, nil
	case amazon.IsMissing(err) && s.cfg.CreateTopics:
		return topic, s.create(ctx, name)
	case amazon.IsMissing(err):
		how := ""
		if isFIFO {
			how = " --attributes FifoTopic=true"
		}
		return nil, amazon.Missing(fmt.Errorf("sns: topic %q doesn't exist: create it, for example by: aws sns create-topic --name %s%s",
			name, bareName(name), how))
	case err != nil:
		return nil, amazon.Classify(fmt.Sprintf("sns: look for topic %q", name), err)
	}
	if limit, err := strconv.Atoi(output.Attributes["MaximumMessageSize"]); err == nil && limit > 0 {
		topic.Limit = min(limit, largestLimit)
		topic.Request = topic.Limit
	}
	if !isFIFO {
		s.cfg.Logger.Warn("standard topic: it keeps no order within a key, and drops no repeats", "topic", name)
	}
	return topic, nil
}

func (s *service) create(ctx context.Context, name string) error {
	input := &sns.CreateTopicInput{Name: aws.String(bareName(name))}
	if strings.HasSuffix(name, amazon.FIFO) {
		input.Attributes = map[string]string{"FifoTopic": "true"}
	}
	output, err := s.client.CreateTopic(ctx, input)
	if err != nil {
		return amazon.Classify(fmt.Sprintf("sns: create topic %q", name), err)
	}
	if created := aws.ToString(output.TopicArn); created != name {
		return fmt.Errorf("sns: topic %q can't be created: with these credentials and this endpoint it would be %q", name, created)
	}
	s.cfg.Logger.Info("created topic", "topic", name)
	return nil
}

func bareName(name string) string { return name[strings.LastIndexByte(name, ':')+1:] }

// Send implements amazon.Service.
func (s *service) Send(ctx context.Context, topic *amazon.Target, entries []amazon.Entry, answer *amazon.Outcomes) error {
	input := &sns.PublishBatchInput{TopicArn: &topic.Address}
	for i := range entries {
		e := &entries[i]
		input.PublishBatchRequestEntries = append(input.PublishBatchRequestEntries, types.PublishBatchRequestEntry{
			Id: amazon.EntryID(i), Message: &e.Body, MessageGroupId: e.Group, MessageDeduplicationId: e.ID,
			MessageAttributes: amazon.Values(e, func(kind, text *string) types.MessageAttributeValue {
				return types.MessageAttributeValue{DataType: kind, StringValue: text}
			}),
		})
	}
	output, err := s.client.PublishBatch(ctx, input)
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
