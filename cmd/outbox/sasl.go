package main

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/oauth"
)

// saslConfig is nil without authentication.
func saslConfig(s config.SASL, logger *slog.Logger) (*kafka.SASL, error) {
	mechanism := strings.ToUpper(s.Mechanism)
	switch {
	case s.OAuth != nil:
		secured, err := tlsConfig(s.OAuth.TLS)
		if err != nil {
			return nil, fmt.Errorf("sasl.oauth: %w", err)
		}
		source, err := oauth.New(oauth.Config{
			TokenURL:     s.OAuth.TokenURL,
			ClientID:     s.OAuth.ClientID,
			ClientSecret: s.OAuth.ClientSecret.Text(),
			Scopes:       s.OAuth.Scopes,
			Parameters:   byName(s.OAuth.Parameters),
			TLS:          secured,
			Timeout:      s.OAuth.Timeout,
			Logger:       logger,
		})
		if err != nil {
			return nil, err
		}
		return &kafka.SASL{Mechanism: mechanism, Token: source.Token, Extensions: byName(s.OAuth.Extensions)}, nil
	case s.Username != "":
		return &kafka.SASL{Mechanism: mechanism, User: s.Username, Password: s.Password.Text()}, nil
	}
	return nil, nil
}

func byName(fields []config.OAuthField) map[string]string {
	values := make(map[string]string, len(fields))
	for _, f := range fields {
		values[f.Name] = f.Value
	}
	return values
}
