package brokers

import (
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/config/transport"
	"github.com/pgoutbox/outbox/cmd/internal/oauth"
	"github.com/pgoutbox/outbox/internal/settings"
)

// SASL authenticates with a name and a password, or with tokens.
type SASL struct {
	Mechanism    string        `json:"mechanism" enum:"plain,scram-sha-256,scram-sha-512,oauthbearer" jsonschema:"SASL mechanism."`
	User         string        `json:"username" jsonschema:"User name. Empty: no authentication, unless oauth is given."`
	Password     scalar.Secret `json:"password" jsonschema:"Password."`
	PasswordFile string        `json:"password_file" jsonschema:"File that holds the password, instead of password."`
	OAuth        *OAuth        `json:"oauth" field:"Token" jsonschema:"Where tokens come from, for the mechanism oauthbearer."`
}

// OAuth fetches tokens with a client's credentials.
type OAuth struct {
	TokenURL         string        `json:"token_url" jsonschema:"The server's token endpoint. Required."`
	ClientID         string        `json:"client_id" jsonschema:"Id of the client. Required."`
	ClientSecret     scalar.Secret `json:"client_secret" jsonschema:"The client's secret. Required."`
	ClientSecretFile string        `json:"client_secret_file" jsonschema:"File that holds the secret, instead of client_secret."`
	Scopes           []string      `json:"scopes" jsonschema:"Scopes that are asked for. Empty: the server decides."`
	Parameters       []OAuthField  `json:"parameters" jsonschema:"What the server is sent beside, such as an audience."`
	Extensions       []OAuthField  `json:"extensions" jsonschema:"SASL extensions that the cluster is sent with the token, such as logicalCluster."`
	Timeout          time.Duration `json:"timeout" jsonschema:"Bound of a request for a token."`
	TLS              transport.TLS `json:"tls" jsonschema:"Transport security of an https token_url, beside what the system trusts."`
}

// OAuthField is a name with a value.
type OAuthField struct {
	Name  string `json:"name" jsonschema:"Its name. Required."`
	Value string `json:"value" jsonschema:"Its value. Required."`
}

// SetDefaults gives the defaults of package oauth.
func (o *OAuth) SetDefaults() { fields.Adopt(o, oauth.Defaults()) }

const oauthBearer = "oauthbearer"

// config is nil without authentication.
func (s SASL) config(faults *settings.Faults, o Opening) *kafka.SASL {
	if s.User == "" && s.Password.Empty() && s.OAuth == nil && s.Mechanism != oauthBearer {
		return nil
	}
	cfg := &kafka.SASL{}
	fields.Assign(cfg, s)
	cfg.Mechanism = strings.ToUpper(s.Mechanism)
	if s.OAuth != nil {
		var own settings.Faults
		tokens := oauth.Config{Parameters: byName(s.OAuth.Parameters), TLS: s.OAuth.TLS.Config(&own), Logger: o.Logger}
		fields.Assign(&tokens, *s.OAuth)
		source, err := oauth.New(tokens)
		own.Add("", err)
		faults.Add("SASL.Token", own.Err())
		cfg.Token, cfg.Extensions = source.Token, byName(s.OAuth.Extensions)
	}
	return cfg
}

func byName(fields []OAuthField) map[string]string {
	values := make(map[string]string, len(fields))
	for _, f := range fields {
		values[f.Name] = f.Value
	}
	return values
}

// RFC 7628 has the form of extensions, and auth among them is the token.
var (
	extensionName  = regexp.MustCompile(`^[A-Za-z]+$`)
	extensionValue = regexp.MustCompile(`^[\x21-\x7E \t\r\n]+$`)
)

// Advise warns about a secret that travels in the clear, and checks the parameters and extensions.
func (o *OAuth) Advise(r *findings.Report, path string) {
	if u, err := url.Parse(o.TokenURL); err == nil && u.Scheme == "http" {
		ip, err := netip.ParseAddr(u.Hostname())
		r.Advise(u.Hostname() == "localhost" || err == nil && ip.IsLoopback(), path+".token_url", "http:// shows the secret to everybody on the way; use https://")
	}
	checkOAuthFields(r, o.Parameters, path+".parameters", func(f OAuthField, at string) {
		r.Check(f.Name != "" && f.Name != "scope" && f.Name != "client_id" && f.Name != "client_secret", at+".name",
			"%q can't be set here", f.Name)
	})
	checkOAuthFields(r, o.Extensions, path+".extensions", func(f OAuthField, at string) {
		r.Check(extensionName.MatchString(f.Name) && f.Name != "auth", at+".name",
			"%q is not the name of an extension; use letters alone, and not auth", f.Name)
		r.Check(extensionValue.MatchString(f.Value), at+".value", "empty, or not of printable ASCII characters")
	})
}

func checkOAuthFields(r *findings.Report, list []OAuthField, path string, check func(OAuthField, string)) {
	seen := make(map[string]bool)
	for i, f := range list {
		at := fields.Element(path, i)
		check(f, at)
		r.Check(!seen[f.Name], at+".name", "%q is given twice", f.Name)
		seen[f.Name] = true
	}
}
