package main

import (
	"net/http"

	"github.com/pgoutbox/outbox/broker/grpc"
	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/cmd/internal/config"
)

// Brokers that are services of somebody's: webhooks and gRPC.

func openHTTP(w *config.Webhook, s brokerSetting) (*webhooks.Broker, error) {
	secured, err := tlsConfig(w.TLS)
	if err != nil {
		return nil, err
	}
	keys, err := w.Keys()
	if err != nil {
		return nil, err
	}
	networks, err := w.Networks()
	if err != nil {
		return nil, err
	}
	cfg := webhooks.Config{
		Keys:             keys,
		Format:           s.format,
		Batch:            w.RequestMessages,
		MaxInFlight:      w.MaxInFlight,
		MaxPayload:       int(w.MaxPayload),
		Timeout:          w.Timeout,
		MaxRetryAfter:    w.MaxRetryAfter,
		Bearer:           w.BearerToken.Text(),
		User:             w.User,
		Password:         w.Password.Text(),
		AllowNetworks:    networks,
		Proxy:            w.Proxy.Text(),
		TLS:              secured,
		UnencryptedHTTP2: w.HTTP2Cleartext,
		Logger:           s.logger,
	}
	if w.APIKeyHeader != "" {
		cfg.Header = http.Header{w.APIKeyHeader: {w.APIKey.Text()}}
	}
	return webhooks.New(w.URL.Text(), cfg)
}

func openGRPC(g *config.GRPC, s brokerSetting) (*grpc.Broker, error) {
	secured, err := tlsConfig(g.TLS)
	if err != nil {
		return nil, err
	}
	return grpc.New(g.Target, grpc.Config{
		TLS:             secured,
		Token:           g.Token.Text(),
		Format:          s.format,
		Unary:           g.Unary,
		RequestMessages: g.RequestMessages,
		MaxMessageBytes: int(g.MaxMessageBytes),
		AckTimeout:      g.AckTimeout,
		MaxRetryAfter:   g.MaxRetryAfter,
		Keepalive:       g.Keepalive,
		Logger:          s.logger,
	})
}
