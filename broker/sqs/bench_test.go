package sqs_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/amazon/amazontest"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/internal/servers"
)

// The loop is the client library alone, which keeps no order when something fails: as
// many goroutines as the broker has requests, each sending ten messages with the same attributes.
func BenchmarkAgainstLoop(b *testing.B) {
	const size, requests = 500, 16
	server := servers.TestElasticMQ(b, servers.ElasticMQConfig{Bench: true})
	account := connect(b, server.URL())
	versus.Run(b, "sqs", versus.Contest{
		Address: strings.TrimPrefix(server.URL(), "http://"),
		Adapter: func(b *testing.B, address string) versus.Publish {
			topic := strings.TrimSuffix(account.queue(".fifo"), ".fifo")
			broker := connect(b, "http://"+address).broker(sqs.Config{})
			return versus.Publishing(b, broker, versus.Batch(topic, size, size))
		},
		Loop: func(b *testing.B, address string) versus.Publish {
			l := newLoop(b, "http://"+address, account.queue(".fifo"), requests)
			return func() int { l.send(b, versus.Batch("t", size, size)); return size }
		},
	})
}

// bare is the client library with one queue.
type bare struct {
	client   *sdk.Client
	queue    *string // its URL
	requests int     // at once
}

func newLoop(b *testing.B, endpoint, queue string, requests int) *bare {
	b.Helper()
	cfg := amazontest.Anyone()
	cfg.BaseEndpoint = &endpoint
	transport := &http.Transport{MaxIdleConnsPerHost: requests}
	b.Cleanup(transport.CloseIdleConnections)
	cfg.HTTPClient = &http.Client{Transport: transport}
	l := &bare{client: sdk.NewFromConfig(*cfg), requests: requests}
	url, err := l.client.GetQueueUrl(b.Context(), &sdk.GetQueueUrlInput{QueueName: &queue})
	if err != nil {
		b.Fatal(err)
	}
	l.queue = url.QueueUrl
	return l
}

// send sends batch, ten messages a request.
func (l *bare) send(b *testing.B, batch []*outbox.Message) {
	amazontest.Tens(l.requests, batch, func(ten []*outbox.Message) {
		if out, err := l.client.SendMessageBatch(b.Context(), l.request(ten)); err != nil || len(out.Failed) > 0 {
			b.Errorf("%v, %v", out, err)
		}
	})
}

func (l *bare) request(ten []*outbox.Message) *sdk.SendMessageBatchInput {
	input := &sdk.SendMessageBatchInput{QueueUrl: l.queue}
	for i, m := range ten {
		input.Entries = append(input.Entries, types.SendMessageBatchRequestEntry{
			Id: aws.String(fmt.Sprint(i)), MessageBody: aws.String(string(m.Payload)),
			MessageGroupId: aws.String(m.Key), MessageDeduplicationId: aws.String(m.ID.String()),
			MessageAttributes: map[string]types.MessageAttributeValue{
				"outbox-id":  {DataType: aws.String("String"), StringValue: aws.String(m.ID.String())},
				"outbox-key": {DataType: aws.String("String"), StringValue: aws.String(m.Key)},
			},
		})
	}
	return input
}
