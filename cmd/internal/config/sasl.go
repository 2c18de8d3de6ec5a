package config

import (
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// SASL authenticates with a name and a password, or with tokens.
type SASL struct {
	Mechanism    string `json:"mechanism" enum:"plain,scram-sha-256,scram-sha-512,oauthbearer" jsonschema:"SASL mechanism."`
	Username     string `json:"username" jsonschema:"User name. Empty: no authentication, unless oauth is given."`
	Password     Secret `json:"password" jsonschema:"Password."`
	PasswordFile string `json:"password_file" jsonschema:"File that holds the password, instead of password."`
	OAuth        *OAuth `json:"oauth" jsonschema:"Where tokens come from, for the mechanism oauthbearer."`
}

// OAuth fetches tokens with a client's credentials.
type OAuth struct {
	TokenURL         string        `json:"token_url" jsonschema:"The server's token endpoint. Required."`
	ClientID         string        `json:"client_id" jsonschema:"Id of the client. Required."`
	ClientSecret     Secret        `json:"client_secret" jsonschema:"The client's secret. Required."`
	ClientSecretFile string        `json:"client_secret_file" jsonschema:"File that holds the secret, instead of client_secret."`
	Scopes           []string      `json:"scopes" jsonschema:"Scopes that are asked for. Empty: the server decides."`
	Parameters       []OAuthField  `json:"parameters" jsonschema:"What the server is sent beside, such as an audience."`
	Extensions       []OAuthField  `json:"extensions" jsonschema:"SASL extensions that the cluster is sent with the token, such as logicalCluster."`
	Timeout          time.Duration `json:"timeout" jsonschema:"Bound of a request for a token."`
	TLS              TLS           `json:"tls" jsonschema:"Transport security of an https token_url, beside what the system trusts."`
}

// OAuthField is a name with a value.
type OAuthField struct {
	Name  string `json:"name" jsonschema:"Its name. Required."`
	Value string `json:"value" jsonschema:"Its value. Required."`
}

// DefaultOAuth returns the settings of a source of tokens that is only named.
func DefaultOAuth() OAuth { return OAuth{Timeout: 5 * time.Second} }

const oauthBearer = "oauthbearer"

func (l *loader) sasl(s SASL, secured bool, path string) {
	if s.Mechanism == oauthBearer || s.OAuth != nil {
		l.tokens(s, secured, path)
		return
	}
	if s.Username == "" {
		l.check(s.Password.Empty(), path+".username", "not given, but a password is")
		return
	}
	l.check(!s.Password.Empty() || l.rejected[path+".password_file"], path+".password", "not given, but a username is; set it or password_file")
	l.advise(s.Mechanism != "plain" || secured, path+".mechanism", "plain sends the password unencrypted, since tls.enabled is false")
}

func (l *loader) tokens(s SASL, secured bool, path string) {
	l.check(s.Mechanism == oauthBearer, path+".oauth", "given, but mechanism is %s; set mechanism: oauthbearer, or leave oauth out", s.Mechanism)
	l.check(s.OAuth != nil, path+".oauth", "not given, but mechanism is oauthbearer; it needs token_url, client_id and client_secret")
	l.check(s.Username == "" && s.Password.Empty(), path+".username", "oauthbearer takes no username and no password; name client_id and client_secret in oauth")
	l.advise(secured, path+".mechanism", "oauthbearer sends tokens unencrypted, since tls.enabled is false")
	if s.OAuth != nil {
		l.oauth(*s.OAuth, path+".oauth")
	}
}

// RFC 7628 has the form of extensions, and auth among them is the token.
var (
	extensionName  = regexp.MustCompile(`^[A-Za-z]+$`)
	extensionValue = regexp.MustCompile(`^[\x21-\x7E \t\r\n]+$`)
)

func (l *loader) oauth(o OAuth, path string) {
	u, err := url.Parse(o.TokenURL)
	good := err == nil && u.Hostname() != "" && u.User == nil && (u.Scheme == "https" || u.Scheme == "http")
	// Whatever it is, it may have a secret in it.
	l.check(good, path+".token_url", "not a URL such as https://login.example.com/oauth2/token, without user and password")
	if good && u.Scheme == "http" {
		ip, err := netip.ParseAddr(u.Hostname())
		l.advise(u.Hostname() == "localhost" || err == nil && ip.IsLoopback(), path+".token_url", "http:// shows the secret to everybody on the way; use https://")
		l.check(!o.TLS.Enabled, path+".tls.enabled", "true, but token_url begins with http://, which is without TLS")
	}
	l.check(o.ClientID != "", path+".client_id", "not given")
	l.check(!o.ClientSecret.Empty() || l.rejected[path+".client_secret_file"], path+".client_secret", "not given; set it or client_secret_file")
	for i, scope := range o.Scopes {
		l.check(scope != "" && !strings.ContainsAny(scope, " \t\r\n\"\\"), element(path+".scopes", i), "%q is not one scope; write each as an element of its own", scope)
	}
	l.oauthFields(o.Parameters, path+".parameters", func(f OAuthField, at string) {
		l.check(f.Name != "" && f.Name != "scope" && f.Name != "client_id" && f.Name != "client_secret", at+".name", "%q can't be set here", f.Name)
	})
	l.oauthFields(o.Extensions, path+".extensions", func(f OAuthField, at string) {
		l.check(extensionName.MatchString(f.Name) && f.Name != "auth", at+".name", "%q is not the name of an extension; use letters alone, and not auth", f.Name)
		l.check(extensionValue.MatchString(f.Value), at+".value", "empty, or not of printable ASCII characters")
	})
	l.tls(o.TLS, path+".tls")
}

func (l *loader) oauthFields(fields []OAuthField, path string, check func(OAuthField, string)) {
	seen := make(map[string]bool)
	for i, f := range fields {
		at := element(path, i)
		check(f, at)
		l.check(!seen[f.Name], at+".name", "%q is given twice", f.Name)
		seen[f.Name] = true
	}
}
