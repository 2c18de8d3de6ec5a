package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// SASL is a user with a password, or a source of tokens. Printing it shows neither password nor token.
type SASL struct {
	// Mechanism is "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512" or "OAUTHBEARER".
	Mechanism string

	// User and Password are for all mechanisms but OAUTHBEARER.
	User     string
	Password string

	// Token returns the token for OAUTHBEARER. It is called for every connection, and again before a
	// session ends whose length the server limits, by several goroutines. A token should have 3 s to live or more:
	// Kafka refuses sessions that have to be renewed within a second of their beginning (ILLEGAL_SASL_STATE), and a
	// session is renewed a second before its token expires.
	Token func(ctx context.Context) (string, error)

	// Extensions are sent with the token, as some services ask for: logicalCluster, identityPoolId.
	Extensions map[string]string
}

func (s SASL) String() string {
	if s.User == "" {
		return s.Mechanism
	}
	return s.Mechanism + " as " + s.User
}
func (s SASL) GoString() string { return s.String() }

// LogValue keeps the password out of logs.
func (s SASL) LogValue() slog.Value { return slog.StringValue(s.String()) }

const oauthBearer = "OAUTHBEARER"

func (s SASL) mechanism() (sasl.Mechanism, error) {
	name := strings.ToUpper(s.Mechanism)
	switch {
	case name == oauthBearer && s.Token == nil:
		return nil, errors.New("sasl mechanism OAUTHBEARER needs a Token function")
	case name == oauthBearer && (s.User != "" || s.Password != ""):
		return nil, errors.New("sasl mechanism OAUTHBEARER takes a token, and no user and password")
	case name != oauthBearer && (s.Token != nil || len(s.Extensions) > 0):
		return nil, fmt.Errorf("sasl mechanism %q takes no token and no extensions", s.Mechanism)
	case name != oauthBearer && (s.User == "" || s.Password == ""):
		return nil, errors.New("sasl needs a user and a password")
	}
	switch name {
	case "PLAIN":
		return plain.Auth{User: s.User, Pass: s.Password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha512Mechanism(), nil
	case oauthBearer:
		return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
			token, err := s.Token(ctx)
			if err != nil {
				return oauth.Auth{}, fmt.Errorf("get a token: %w", err)
			}
			return oauth.Auth{Token: token, Extensions: s.Extensions}, nil
		}), nil
	}
	return nil, fmt.Errorf("sasl mechanism %q: use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER", s.Mechanism)
}
