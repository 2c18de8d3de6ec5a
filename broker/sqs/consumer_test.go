package sqs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/internal/amazon/amazontest"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/lanes/lanestest"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestAnSQSConsumerDoesWhatAConsumerMust(t *testing.T) {
	t.Parallel()
	server := servers.TestElasticMQ(t, relaxed)
	lanestest.Run(t,
		lanestest.Harness{Ordered: true, LagByAsking: true, Patience: 5 * time.Second, Source: func(t *testing.T) lanestest.Source {
			a := connect(t, server.URL())
			name := a.queue(".fifo")
			return lanestest.Source{
				Topic:   strings.TrimSuffix(name, ".fifo"),
				Publish: a.broker(sqs.Config{}).Publish,
				Foreign: func(t *testing.T, key, id string) {
					attributes := map[string]types.MessageAttributeValue{"outbox-key": {DataType: aws.String("String"), StringValue: &key}}
					if id != "" {
						attributes["outbox-id"] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &id}
					}
					url, err := a.client.GetQueueUrl(patient(t), &sdk.GetQueueUrlInput{QueueName: &name})
					if err == nil {
						_, err = a.client.SendMessage(patient(t), &sdk.SendMessageInput{
							QueueUrl: url.QueueUrl, MessageBody: aws.String("1"),
							MessageGroupId: &key, MessageDeduplicationId: aws.String(outbox.NewID().String()),
							MessageAttributes: attributes,
						})
					}
					if err != nil {
						t.Fatal(err)
					}
				},
				Open: func(t *testing.T, cfg consume.Config, handler consume.Handler) lanestest.Consumer {
					conn := sqs.Config{Endpoint: server.URL(), AWS: amazontest.Anyone()}
					c, err := sqs.NewConsumer(conn, sqs.ConsumerConfig{Queue: name, Visibility: 5 * time.Second, Handling: cfg}, handler)
					if err != nil {
						t.Fatal(err)
					}
					return c
				},
			}
		}})
}

func TestAConsumerOfAStandardQueueHandlesEverythingAndLeavesRejectedMessagesToTheRedrivePolicy(t *testing.T) {
	t.Parallel()
	server := servers.TestElasticMQ(t, relaxed)
	a := connect(t, server.URL())
	name, dead := a.queue(""), a.queue("")
	url := func(queue string) *string {
		t.Helper()
		got, err := a.client.GetQueueUrl(patient(t), &sdk.GetQueueUrlInput{QueueName: &queue})
		if err != nil {
			t.Fatal(err)
		}
		return got.QueueUrl
	}
	attributes, err := a.client.GetQueueAttributes(patient(t),
		&sdk.GetQueueAttributesInput{QueueUrl: url(dead), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn}})
	if err == nil {
		_, err = a.client.SetQueueAttributes(patient(t), &sdk.SetQueueAttributesInput{QueueUrl: url(name), Attributes: map[string]string{
			"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"2"}`, attributes.Attributes["QueueArn"]),
		}})
	}
	if err != nil {
		t.Fatal(err)
	}
	const count = 30
	batch := brokertest.Messages(name, count, 5)
	accepted(t, a.broker(sqs.Config{Queue: "{topic}", Unordered: true}).Publish(patient(t), batch))
	bad := batch[7].ID
	var mu sync.Mutex
	handled, tried := map[outbox.ID]bool{}, 0
	conn := sqs.Config{Endpoint: server.URL(), AWS: amazontest.Anyone()}
	c, err := sqs.NewConsumer(conn,
		sqs.ConsumerConfig{Queue: name, Visibility: 5 * time.Second, Handling: consume.Config{Policy: consume.Reject}},
		func(_ context.Context, msg *outbox.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if msg.ID == bad {
				tried++
				return outbox.Permanent(errors.New("never"))
			}
			handled[msg.ID] = true
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	// It is left alone, so it comes again when its time is over, and the service moves it then.
	got, err := a.client.ReceiveMessage(patient(t),
		&sdk.ReceiveMessageInput{QueueUrl: url(dead), WaitTimeSeconds: 20, MessageAttributeNames: []string{"All"}})
	for err == nil && len(got.Messages) == 0 && patient(t).Err() == nil {
		got, err = a.client.ReceiveMessage(patient(t),
			&sdk.ReceiveMessageInput{QueueUrl: url(dead), WaitTimeSeconds: 20, MessageAttributeNames: []string{"All"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if id := aws.ToString(got.Messages[0].MessageAttributes["outbox-id"].StringValue); id != bad.String() {
		t.Errorf("the dead-letter queue has %s, want %s", id, bad)
	}
	for ok := false; !ok; time.Sleep(5 * time.Millisecond) {
		mu.Lock()
		ok = len(handled) == count-1
		mu.Unlock()
		if patient(t).Err() != nil {
			t.Fatalf("%d of %d were handled", len(handled), count-1)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if tried != 2 {
		t.Errorf("it was tried %d times, want 2 as the queue says", tried)
	}
}
