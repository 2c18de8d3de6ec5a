package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// SASL is a user with a password, or a source of tokens. Its printed form has neither password nor token.
type SASL struct {
	// Mechanism is "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512" or "OAUTHBEARER".
	Mechanism string

	// User and Password are for all mechanisms but OAUTHBEARER.
	User     string
	Password string

	// Token returns the token for OAUTHBEARER. It is called for every connection, and again before a session ends whose
	// length the server limits, by several goroutines. A token should be valid for 3 s or more: Kafka refuses sessions
	// that have to be renewed within a second of their beginning (ILLEGAL_SASL_STATE), and a session is renewed a
	// second before its token expires.
	Token func(ctx context.Context) (string, error)

	// Extensions are sent with the token, as some services require: logicalCluster, identityPoolId.
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
	var faults settings.Faults
	name := strings.ToUpper(s.Mechanism)
	if name == oauthBearer {
		faults.Need(s.Token != nil, "Token", "not given, but the mechanism is OAUTHBEARER")
		faults.Need(s.User == "" && s.Password == "", "User", "given, or a password is, but OAUTHBEARER takes a token alone")
	} else {
		faults.Need(s.Token == nil && len(s.Extensions) == 0, "Token",
			"given, or extensions are, but the mechanism is %s; choose OAUTHBEARER, or leave them out", s.Mechanism)
		faults.Need(s.User != "" || s.Token != nil, "User", "not given; PLAIN and SCRAM take a user and a password")
		faults.Need(s.Password != "" || s.Token != nil, "Password", "not given; PLAIN and SCRAM take a user and a password")
	}
	var mechanism sasl.Mechanism
	switch name {
	case "PLAIN":
		mechanism = plain.Auth{User: s.User, Pass: s.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		mechanism = scram.Auth{User: s.User, Pass: s.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		mechanism = scram.Auth{User: s.User, Pass: s.Password}.AsSha512Mechanism()
	case oauthBearer:
		mechanism = oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
			token, err := s.Token(ctx)
			if err != nil {
				return oauth.Auth{}, fmt.Errorf("get a token: %w", err)
			}
			return oauth.Auth{Token: token, Extensions: s.Extensions}, nil
		})
	default:
		faults.Need(false, "Mechanism", "%q: use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER", s.Mechanism)
	}
	return mechanism, faults.Err()
}
