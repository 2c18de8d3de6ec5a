package sns_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/amazon/amazontest"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/broker/sns"
)

// The loop is the client library alone, which keeps no order when something fails: as many goroutines as the broker has
// requests, each sending ten messages with the same attributes. The server is the tests' own, for moto is so slow that
// nothing else would be seen.
func BenchmarkAgainstLoop(b *testing.B) {
	const size, requests = 500, 16
	f := newFake(b)
	versus.Run(b, "sns", versus.Contest{
		Address: strings.TrimPrefix(f.URL, "http://"),
		Adapter: func(b *testing.B, address string) versus.Publish {
			topic, broker := f.topic(256<<10), connect(b, "http://"+address).broker(sns.Config{})
			publish := versus.Publishing(b, broker, versus.Batch(topic, size, size))
			return func() int {
				defer f.forget(topic)
				return publish()
			}
		},
		Loop: func(b *testing.B, address string) versus.Publish {
			topic, client := f.topic(256<<10), connect(b, "http://"+address).sns
			return func() int {
				loop(b, client, requests, versus.Batch(topic, size, size))
				f.forget(topic)
				return size
			}
		},
	})
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
	amazontest.Tens(requests, batch, func(ten []*outbox.Message) {
		if out, err := client.PublishBatch(b.Context(), request(ten)); err != nil || len(out.Failed) > 0 {
			b.Errorf("%v, %v", out, err)
		}
	})
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
