package sqs

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox/broker/internal/amazon"
)

// Find implements amazon.Service.
func (s *service) Find(ctx context.Context, name string, create bool) (*amazon.Target, error) {
	address, err := s.address(ctx, name, create)
	if err != nil || address == "" {
		return nil, err
	}
	bare, isFIFO := strings.CutSuffix(name, amazon.FIFO)
	queue := &amazon.Target{Name: name, Address: address, FIFO: isFIFO, Topic: bare, Limit: requestBytes, Request: requestBytes}
	output, err := s.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl:       &address,
		AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if amazon.IsDenied(err) {
		s.cfg.Logger.Debug("queue settings not checked", "queue", name, "error", err)
		return queue, nil
	}
	if err != nil {
		return nil, amazon.Classify(fmt.Sprintf("sqs: read the settings of queue %q", name), err)
	}
	if limit, err := strconv.Atoi(output.Attributes[string(types.QueueAttributeNameMaximumMessageSize)]); err == nil && limit > 0 {
		queue.Limit = min(limit, requestBytes)
	}
	s.warn(name, isFIFO, output.Attributes)
	return queue, nil
}

// address returns the URL of a queue, "" if it would be created.
func (s *service) address(ctx context.Context, name string, create bool) (string, error) {
	input := &sqs.GetQueueUrlInput{QueueName: &name}
	if s.cfg.Account != "" {
		input.QueueOwnerAWSAccountId = &s.cfg.Account
	}
	output, err := s.client.GetQueueUrl(ctx, input)
	switch {
	case err == nil:
		return aws.ToString(output.QueueUrl), nil
	case !amazon.IsMissing(err):
		return "", amazon.Classify(fmt.Sprintf("sqs: look for queue %q", name), err)
	case s.cfg.CreateQueues == nil:
		how := ""
		if strings.HasSuffix(name, amazon.FIFO) {
			how = " --attributes FifoQueue=true"
		}
		return "", amazon.Missing(fmt.Errorf("sqs: queue %q doesn't exist, or may not be seen: create it, for example "+
			"by: aws sqs create-queue --queue-name %s%s", name, name, how))
	case !create:
		return "", nil
	}
	return s.create(ctx, name)
}

func (s *service) create(ctx context.Context, name string) (string, error) {
	settings := s.cfg.CreateQueues
	attributes := map[string]string{
		string(types.QueueAttributeNameMessageRetentionPeriod): strconv.Itoa(int(settings.Retention / time.Second)),
	}
	if strings.HasSuffix(name, amazon.FIFO) {
		attributes[string(types.QueueAttributeNameFifoQueue)] = "true"
		if !settings.SharedThroughput {
			attributes[string(types.QueueAttributeNameDeduplicationScope)] = "messageGroup"
			attributes[string(types.QueueAttributeNameFifoThroughputLimit)] = "perMessageGroupId"
		}
	}
	output, err := s.client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
	if err != nil {
		return "", amazon.Classify(fmt.Sprintf("sqs: create queue %q", name), err)
	}
	s.cfg.Logger.Info("created queue", "queue", name)
	return aws.ToString(output.QueueUrl), nil
}

// warn logs settings that endanger the guarantees.
func (s *service) warn(name string, isFIFO bool, attributes map[string]string) {
	logger := s.cfg.Logger.With("queue", name)
	if !isFIFO {
		logger.Warn("standard queue: it keeps no order within a key, and drops no repeats")
	}
	if seconds, err := strconv.Atoi(attributes[string(types.QueueAttributeNameMessageRetentionPeriod)]); err == nil &&
		time.Duration(seconds)*time.Second < 24*time.Hour {
		logger.Warn("queue keeps messages for less than a day: what isn't consumed by then is lost",
			"retention", time.Duration(seconds)*time.Second)
	}
}
