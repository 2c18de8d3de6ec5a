package sns_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/broker/sns"
)

// The loop is the client library alone, which keeps no order when something fails: as many goroutines as the broker has
// requests, each sending ten messages with the same attributes. The server is the tests' own, for moto is so slow that
// nothing else would be seen.
func BenchmarkAgainstLoop(b *testing.B) {
	const size, requests = 500, 16
	b.Run("sns", func(b *testing.B) {
		f := newFake(b)
		versus.Run(b, versus.Contest{
			Address: strings.TrimPrefix(f.URL, "http://"),
			Adapter: func(b *testing.B, address string) versus.Publish {
				topic, broker := f.topic(256<<10), connect(b, "http://"+address).broker(sns.Config{})
				return func() int {
					accepted(b, broker.Publish(b.Context(), benchBatch(topic, size)))
					f.forget(topic)
					return size
				}
			},
			Loop: func(b *testing.B, address string) versus.Publish {
				topic, client := f.topic(256<<10), connect(b, "http://"+address).sns
				return func() int {
					loop(b, client, requests, benchBatch(topic, size))
					f.forget(topic)
					return size
				}
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

// forget drops what a topic has.
func (f *fake) forget(topic string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.topics[prefix+topic+".fifo"]
	t.accepted = nil
	clear(t.seen)
}

func loop(b *testing.B, client *sdk.Client, requests int, batch []*outbox.Message) {
	next := make(chan []*outbox.Message)
	var workers sync.WaitGroup
	for range requests {
		workers.Go(func() {
			for ten := range next {
				if out, err := client.PublishBatch(b.Context(), request(ten)); err != nil || len(out.Failed) > 0 {
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

func request(ten []*outbox.Message) *sdk.PublishBatchInput {
	input := &sdk.PublishBatchInput{TopicArn: aws.String(prefix + ten[0].Topic + ".fifo")}
	for i, m := range ten {
		input.PublishBatchRequestEntries = append(input.PublishBatchRequestEntries, types.PublishBatchRequestEntry{
			Id: aws.String(fmt.Sprint(i)), Message: aws.String(string(m.Payload)),
			MessageGroupId: aws.String(m.Key), MessageDeduplicationId: aws.String(m.ID.String()),
			MessageAttributes: map[string]types.MessageAttributeValue{
				"outbox-id":  {DataType: aws.String("String"), StringValue: aws.String(m.ID.String())},
				"outbox-key": {DataType: aws.String("String"), StringValue: aws.String(m.Key)},
			},
		})
	}
	return input
}
