package sqs_test

import (
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/internal/lanes/lanestest"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestAnSQSConsumerDoesWhatAConsumerMust(t *testing.T) {
	t.Parallel()
	server := servers.TestElasticMQ(t, relaxed)
	lanestest.Run(t, lanestest.Harness{Ordered: true, LagByAsking: true, Patience: 3 * time.Second, Source: func(t *testing.T) lanestest.Source {
		a := connect(t, server.URL())
		name := a.queue(".fifo")
		return lanestest.Source{
			Topic:   strings.TrimSuffix(name, ".fifo"),
			Publish: a.broker(sqs.Config{}).Publish,
			Foreign: func(t *testing.T, key string) {
				url, err := a.client.GetQueueUrl(patient(t), &sdk.GetQueueUrlInput{QueueName: &name})
				if err == nil {
					_, err = a.client.SendMessage(patient(t), &sdk.SendMessageInput{
						QueueUrl: url.QueueUrl, MessageBody: aws.String("1"), MessageGroupId: &key, MessageDeduplicationId: aws.String(outbox.NewID().String()),
						MessageAttributes: map[string]types.MessageAttributeValue{"outbox-key": {DataType: aws.String("String"), StringValue: &key}},
					})
				}
				if err != nil {
					t.Fatal(err)
				}
			},
			Open: func(t *testing.T, cfg consume.Config, handler consume.Handler) lanestest.Consumer {
				conn := sqs.Config{Endpoint: server.URL(), AWS: anyone()}
				c, err := sqs.NewConsumer(conn, sqs.ConsumerConfig{Queue: name, Visibility: 3 * time.Second, Handling: cfg}, handler)
				if err != nil {
					t.Fatal(err)
				}
				return c
			},
		}
	}})
}
