package sqs

import (
	"context"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/pgoutbox/outbox/broker/internal/amazon"
)

// Accounts returns the account that owns the queues: the one that the configuration names, or that of a queue's URL.
// Without a queue it isn't known.
func (s *service) Accounts(ctx context.Context) ([]amazon.Account, error) {
	id := s.cfg.Account
	if id == "" {
		output, err := s.client.ListQueues(ctx, &sqs.ListQueuesInput{MaxResults: aws.Int32(1)})
		if amazon.IsDenied(err) {
			return nil, nil
		}
		if err != nil {
			return nil, amazon.Classify("sqs: ask for the queues", err)
		}
		if len(output.QueueUrls) > 0 {
			id = accountOf(output.QueueUrls[0])
		}
	}
	if id == "" {
		return nil, nil
	}
	return []amazon.Account{{ID: id, Region: s.client.Options().Region}}, nil
}

// accountOf is the number in https://sqs.eu-central-1.amazonaws.com/123456789012/name.
func accountOf(queue string) string {
	u, err := url.Parse(queue)
	if err != nil {
		return ""
	}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	if len(parts) < 2 {
		return ""
	}
	return parts[len(parts)-2]
}
