package main

import (
	"io"
	"log/slog"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config"
)

func TestBrokersInTheCloudAreOpenedFromTheirConfigurationWithoutAConnection(t *testing.T) {
	t.Parallel()
	sqs, sns, pubsub := config.DefaultSQS(), config.DefaultSNS(), config.DefaultPubSub()
	sqs.Region, sqs.CreateQueues = "eu-central-1", true
	sns.Topic = "arn:aws:sns:eu-central-1:123456789012:{topic}.fifo"
	pubsub.Project = "shop-4711"
	for want, chosen := range map[string]config.Broker{"sqs": {SQS: &sqs}, "sns": {SNS: &sns}, "pubsub": {PubSub: &pubsub}} {
		broker, kind, err := openBroker(chosen, brokerSetting{stdout: io.Discard, logger: slog.New(slog.DiscardHandler)})
		if err != nil || kind != want {
			t.Errorf("%s: opened as %q, %v", want, kind, err)
			continue
		}
		if err := broker.Close(); err != nil {
			t.Errorf("%s: close: %v", want, err)
		}
	}
	sqs.Queue = "{topic}"
	if _, _, err := openBroker(config.Broker{SQS: &sqs}, brokerSetting{}); err == nil {
		t.Error("standard queues were taken without unordered")
	}
}
