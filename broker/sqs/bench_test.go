package sqs_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/amazon/amazontest"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/internal/servers"
)

// The figure to compare with is the client library alone, which keeps no order when something fails: as
// many goroutines as the broker has requests, each sending ten messages with the same attributes.
func BenchmarkPublish(b *testing.B) {
	const size, requests = 500, 16
	server := servers.TestElasticMQ(b, servers.ElasticMQConfig{Bench: true})
	b.Run("broker", func(b *testing.B) {
		a := connect(b, server.URL())
		topic := strings.TrimSuffix(a.queue(".fifo"), ".fifo")
		broker := a.broker(sqs.Config{})
		accepted(b, broker.Publish(context.Background(), benchBatch(topic, size)))
		for b.Loop() {
			accepted(b, broker.Publish(context.Background(), benchBatch(topic, size)))
		}
		b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "msg/s")
	})
	b.Run("library", func(b *testing.B) {
		l := newLoop(b, server.URL(), connect(b, server.URL()).queue(".fifo"), requests)
		l.send(b, benchBatch("t", size))
		for b.Loop() {
			l.send(b, benchBatch("t", size))
		}
		b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "msg/s")
	})
}

func BenchmarkAgainstLoop(b *testing.B) {
	const size, requests = 500, 16
	server := servers.TestElasticMQ(b, servers.ElasticMQConfig{Bench: true})
	b.Run("sqs", func(b *testing.B) {
		account := connect(b, server.URL())
		versus.Run(b, versus.Contest{
			Address: strings.TrimPrefix(server.URL(), "http://"),
			Adapter: func(b *testing.B, address string) versus.Publish {
				topic := strings.TrimSuffix(account.queue(".fifo"), ".fifo")
				broker := connect(b, "http://"+address).broker(sqs.Config{})
				return func() int {
					accepted(b, broker.Publish(b.Context(), benchBatch(topic, size)))
					return size
				}
			},
			Loop: func(b *testing.B, address string) versus.Publish {
				l := newLoop(b, "http://"+address, account.queue(".fifo"), requests)
				return func() int { l.send(b, benchBatch("t", size)); return size }
			},
		})
	})
}

func benchBatch(topic string, size int) []*outbox.Message {
	batch := brokertest.Messages(topic, size, size)
	for _, m := range batch {
		m.Payload = []byte(strings.Repeat("x", 256))
	}
	return batch
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
	next := make(chan []*outbox.Message)
	var workers sync.WaitGroup
	for range l.requests {
		workers.Go(func() {
			for ten := range next {
				if out, err := l.client.SendMessageBatch(b.Context(), l.request(ten)); err != nil || len(out.Failed) > 0 {
					b.Errorf("%v, %v", out, err)
				}
			}
		})
	}
	for ten := range slices.Chunk(batch, 10) {
		next <- ten
	}
	close(next)
	workers.Wait()
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
