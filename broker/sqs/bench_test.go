package sqs_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/internal/servers"
)

// The figure to compare with is the client library alone, which keeps no order when something fails: as
// many goroutines as the broker has requests, each sending ten messages with the same attributes.
func BenchmarkPublish(b *testing.B) {
	const size, requests = 500, 16
	server := servers.TestElasticMQ(b, servers.ElasticMQConfig{Bench: true})
	fresh := func(topic string) []*outbox.Message {
		batch := numbered(topic, size, size)
		for _, m := range batch {
			m.Payload = []byte(strings.Repeat("x", 256))
		}
		return batch
	}
	b.Run("broker", func(b *testing.B) {
		a := connect(b, server.URL())
		topic := strings.TrimSuffix(a.queue(".fifo"), ".fifo")
		broker := a.broker(sqs.Config{})
		accepted(b, broker.Publish(context.Background(), fresh(topic)))
		for b.Loop() {
			accepted(b, broker.Publish(context.Background(), fresh(topic)))
		}
		b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "msg/s")
	})
	b.Run("library", func(b *testing.B) {
		a := connect(b, server.URL())
		queue := a.queue(".fifo")
		url, err := a.client.GetQueueUrl(context.Background(), &sdk.GetQueueUrlInput{QueueName: &queue})
		if err != nil {
			b.Fatal(err)
		}
		cfg := anyone()
		cfg.BaseEndpoint = aws.String(server.URL())
		transport := &http.Transport{MaxIdleConnsPerHost: requests}
		defer transport.CloseIdleConnections()
		cfg.HTTPClient = &http.Client{Transport: transport}
		client := sdk.NewFromConfig(*cfg)
		send := func() {
			batch := fresh(queue)
			next := make(chan []*outbox.Message)
			var workers sync.WaitGroup
			for range requests {
				workers.Go(func() {
					for ten := range next {
						input := &sdk.SendMessageBatchInput{QueueUrl: url.QueueUrl}
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
						if out, err := client.SendMessageBatch(context.Background(), input); err != nil || len(out.Failed) > 0 {
							b.Errorf("%v, %v", out, err)
						}
					}
				})
			}
			for len(batch) > 0 {
				next <- batch[:10]
				batch = batch[10:]
			}
			close(next)
			workers.Wait()
		}
		send()
		for b.Loop() {
			send()
		}
		b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "msg/s")
	})
}
