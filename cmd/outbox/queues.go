package main

import (
	"strings"

	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/relay"
)

func openRedis(r *config.Redis, s brokerSetting) (relay.Broker, error) {
	secured, err := tlsConfig(r.TLS)
	if err != nil {
		return nil, err
	}
	redis.SilenceClient()
	return redis.New(strings.Join(r.Addresses, ","), redis.Config{
		Stream:           r.Stream,
		Format:           s.format,
		CreateStreams:    r.CreateStreams,
		DedupWindow:      r.DedupWindow,
		MaxLen:           int64(r.MaxLen),
		MaxAge:           r.MaxAge,
		Replicas:         r.Replicas,
		Fsync:            r.Fsync,
		Cluster:          r.Cluster,
		SentinelMaster:   r.SentinelMaster,
		SentinelUser:     r.SentinelUser,
		SentinelPassword: r.SentinelPassword.Text(),
		Database:         r.Database,
		User:             r.User,
		Password:         r.Password.Text(),
		TLS:              secured,
		Connections:      max(16, 4*s.groups), // a relay of each shard group makes four calls at once
		Logger:           s.logger,
	})
}

func openRabbitMQ(r *config.RabbitMQ, s brokerSetting) (relay.Broker, error) {
	secured, err := tlsConfig(r.TLS)
	if err != nil {
		return nil, err
	}
	cfg := rabbitmq.Config{
		Exchange:       r.Exchange,
		RoutingKey:     r.RoutingKey,
		Format:         s.format,
		CreateExchange: r.CreateExchange,
		User:           r.User,
		Password:       r.Password.Text(),
		External:       r.External,
		TLS:            secured,
		Logger:         s.logger,
	}
	for _, q := range r.CreateQueues {
		cfg.CreateQueues = append(cfg.CreateQueues, rabbitmq.Queue{Name: q.Name, Bindings: q.Bindings, MaxLength: int64(q.MaxLength)})
	}
	return rabbitmq.New(r.URL.Text(), cfg)
}
