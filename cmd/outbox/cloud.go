package main

import (
	"github.com/pgoutbox/outbox/broker/pubsub"
	"github.com/pgoutbox/outbox/broker/sns"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/relay"
)

func openSQS(q *config.SQS, s brokerSetting) (relay.Broker, error) {
	secured, err := tlsConfig(q.TLS)
	if err != nil {
		return nil, err
	}
	cfg := sqs.Config{
		Queue:     q.Queue,
		Format:    s.format,
		Account:   q.Account,
		Unordered: q.Unordered,
		Payload:   q.Payload,
		Region:    q.Region,
		Endpoint:  q.Endpoint,
		TLS:       secured,
		Requests:  q.Requests,
		Timeout:   q.Timeout,
		Logger:    s.logger,
	}
	if q.CreateQueues {
		cfg.CreateQueues = &sqs.QueueSettings{}
	}
	return sqs.New(cfg)
}

func openSNS(n *config.SNS, s brokerSetting) (relay.Broker, error) {
	secured, err := tlsConfig(n.TLS)
	if err != nil {
		return nil, err
	}
	return sns.New(sns.Config{
		Topic:        n.Topic,
		Format:       s.format,
		Unordered:    n.Unordered,
		CreateTopics: n.CreateTopics,
		Payload:      n.Payload,
		Region:       n.Region,
		Endpoint:     n.Endpoint,
		TLS:          secured,
		Requests:     n.Requests,
		Timeout:      n.Timeout,
		Logger:       s.logger,
	})
}

func openPubSub(p *config.PubSub, s brokerSetting) (relay.Broker, error) {
	return pubsub.New(pubsub.Config{
		Project:         p.Project,
		Topic:           p.Topic,
		Format:          s.format,
		CreateTopics:    p.CreateTopics,
		Endpoint:        p.Endpoint,
		Insecure:        p.Insecure,
		CredentialsFile: p.CredentialsFile,
		Requests:        p.Requests,
		Timeout:         p.Timeout,
		Logger:          s.logger,
	})
}
