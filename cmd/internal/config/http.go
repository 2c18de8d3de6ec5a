package config

import (
	"encoding/hex"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/crypto/bcrypt"

	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/config/transport"
)

// HTTP configures the listener for health, metrics and the API.
type HTTP struct {
	Listen      string              `json:"listen" jsonschema:"Address that serves /livez, /readyz, /healthz/destinations, /metrics and the API. Empty: none."`
	API         bool                `json:"api" jsonschema:"Whether the API is served, too. Health and metrics need no login, the API does on an address that other machines reach."`
	TLS         transport.ServerTLS `json:"tls" jsonschema:"Transport security of the listener. None: HTTP in the clear."`
	Metrics     Metrics             `json:"metrics" jsonschema:"How many databases have series of their own at /metrics."`
	Users       []User              `json:"users" jsonschema:"Who may use the API. None: on a loopback address anybody may look, and nobody may change anything."`
	Proxy       *Proxy              `json:"proxy" jsonschema:"A proxy that logs people in, and says in a header who they are. None: no header is believed."`
	MaskHeaders []string            `json:"mask_headers" jsonschema:"Names of message headers whose values the API hides from everybody, in any case, * for any characters. Default: what looks like a login, a key or a signature. [] shows all."`
	Mask        []string            `json:"mask" jsonschema:"Paths in payloads of JSON, such as $.card.number or $.items[*].price, whose values the API hides from everybody. With any, payloads that aren't JSON are hidden."`
}

// Metrics bounds the series of many databases. See docs/metrics.md.
type Metrics struct {
	Databases int `json:"databases" jsonschema:"Up to so many databases have series of their own. With more, /metrics has sums over all, and by name the worst."`
	Worst     int `json:"worst" jsonschema:"With more databases: how many that are not well have gauges by name, the worst first."`
}

// User is somebody with a password, a token, or a login by the proxy.
type User struct {
	Name             string        `json:"name" jsonschema:"Login, and the actor in the audit. Required."`
	Role             string        `json:"role" enum:"viewer,operator" jsonschema:"A viewer looks, without payloads. An operator acts, too."`
	Destinations     []string      `json:"destinations" jsonschema:"Destinations on which an operator may act; elsewhere it is a viewer. Empty: all."`
	Databases        []string      `json:"databases" jsonschema:"Databases, of several, that the user may look into and act in. Empty: all."`
	PasswordHash     scalar.Secret `json:"password_hash" jsonschema:"bcrypt hash of the password, such as htpasswd -nB makes behind the colon. Empty: no login by password."`
	PasswordHashFile string        `json:"password_hash_file" jsonschema:"File that holds the hash, instead of password_hash."`
	Token            scalar.Secret `json:"token" jsonschema:"Bearer token, of at least 32 characters. Empty: none."`
	TokenFile        string        `json:"token_file" jsonschema:"File that holds the token, instead of token."`
	TokenSHA256      string        `json:"token_sha256" jsonschema:"SHA-256 of the bearer token, in hexadecimal, instead of token."`
}

// Proxy is an HTTP proxy that authenticates callers, and is trusted to name them.
type Proxy struct {
	From      []string `json:"from" jsonschema:"Addresses of the proxy, as networks such as 10.1.2.3/32. Others are not believed. Required."`
	Header    string   `json:"header" jsonschema:"Header with the login. The user of that name has its role; a login that is nobody's is a viewer."`
	UsersOnly bool     `json:"users_only" jsonschema:"Refuse a login that is no user's."`
}

// SetDefaults makes it a viewer.
func (u *User) SetDefaults() { u.Role = "viewer" }

// SetDefaults gives the header that most proxies use.
func (p *Proxy) SetDefaults() { p.Header = "X-Forwarded-User" }

// Guarded reports whether callers have to log in.
func (h HTTP) Guarded() bool { return len(h.Users) > 0 || h.Proxy != nil }

// Exposed returns what is wrong if other machines can reach the API.
func (h HTTP) Exposed() string {
	if !h.API || h.Guarded() {
		return ""
	}
	return "other machines can reach this address, and the API would let anybody look: give http.users or http.proxy, " +
		"or set http.api: false to serve health and metrics alone"
}

func (h HTTP) check(r *findings.Report, databases []Entry) {
	if h.Listen == "" {
		return
	}
	checkAddress(r, "http.listen", h.Listen, "127.0.0.1:9187")
	host, _, _ := net.SplitHostPort(h.Listen)
	ip, err := netip.ParseAddr(host)
	public := host == "" || err == nil && !ip.IsLoopback()
	r.Check(!public || h.Exposed() == "", "http.listen", "%s", h.Exposed())
	r.Advise(!public || !h.API || h.TLS.CertFile != "" || len(h.Users) == 0, "http.tls",
		"without it, logins and tokens travel in the clear, unless something before it encrypts")

	h.TLS.Check(r, "http.tls")
	r.Check(h.Metrics.Databases >= 0, "http.metrics.databases", "must not be negative")
	r.Check(h.Metrics.Worst >= 0, "http.metrics.worst", "must not be negative")
	names := map[string]bool{}
	for i, u := range h.Users {
		u.check(r, fields.Element("http.users", i), h.Proxy != nil)
		r.Check(u.Name == "" || !names[u.Name], fields.Element("http.users", i)+".name", "%q is the name of another user as well", u.Name)
		names[u.Name] = true
		for n, name := range u.Databases {
			known := slices.ContainsFunc(databases, func(e Entry) bool { return e.Name == name })
			r.Check(known, fields.Element(fields.Element("http.users", i)+".databases", n), "%q is no database of this configuration", name)
		}
	}
	if h.Proxy != nil {
		r.Check(len(h.Proxy.From) > 0, "http.proxy.from", "not given; name the addresses of the proxy, such as [10.1.2.3/32]")
		for i, from := range h.Proxy.From {
			_, err := netip.ParsePrefix(from)
			r.Check(err == nil, fields.Element("http.proxy.from", i), "%q is not a network such as 10.1.2.3/32", from)
		}
		r.Check(h.Proxy.Header != "" && !strings.ContainsAny(h.Proxy.Header, " :\r\n\t"), "http.proxy.header",
			"%q is not the name of a header", h.Proxy.Header)
	}
	for i := range h.Mask {
		_, err := rest.Mask(h.Mask[i : i+1])
		r.Check(err == nil, fields.Element("http.mask", i), "%v", err)
	}
}

const (
	minToken = 32
	maxCost  = 15 // a second or so for each login
)

func (u User) check(r *findings.Report, path string, proxied bool) {
	foreign := func(r rune) bool { return r < ' ' || r == ':' || r == 0x7f }
	r.Check(u.Name != "" && len(u.Name) <= maxPattern && !strings.ContainsFunc(u.Name, foreign), path+".name",
		"%q is no login: it is 1 to %d characters without a colon", u.Name, maxPattern)
	r.Check(len(u.Destinations) == 0 || u.Role == "operator", path+".destinations", "only an operator acts on destinations")
	hash := u.PasswordHash.Text()
	if hash != "" {
		cost, err := bcrypt.Cost([]byte(hash))
		r.Check(err == nil && cost <= maxCost, path+".password_hash",
			"not a bcrypt hash of a cost up to %d; make one with: htpasswd -nB %s", maxCost, u.Name)
	}
	r.Check(u.Token.Empty() || len(u.Token.Text()) >= minToken, path+".token",
		"too short; a token has at least %d characters, such as openssl rand -hex 32 makes", minToken)
	sum, err := hex.DecodeString(u.TokenSHA256)
	r.Check(err == nil && (len(sum) == 32 || len(sum) == 0), path+".token_sha256", "not 64 hexadecimal digits")
	r.Check(u.Token.Empty() || len(sum) == 0, path+".token_sha256", "token is given as well; keep one of them")
	r.Check(proxied || hash != "" || !u.Token.Empty() || len(sum) > 0 || r.Faulty(path+".password_hash_file") ||
		r.Faulty(path+".token_file"), path, "has no way to log in: give password_hash or token")
}

func checkAddress(r *findings.Report, path, address, example string) {
	host, port, err := net.SplitHostPort(address)
	_, portErr := strconv.ParseUint(port, 10, 16)
	r.Check(err == nil && portErr == nil && !strings.ContainsAny(host, "/@ "), path, "%q is not an address such as %s", address, example)
}
