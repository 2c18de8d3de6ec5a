package daemon

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/crypto/bcrypt"

	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/config"
)

// gate knows who asks.
type gate struct {
	guarded bool
	users   map[string]user
	proxies []netip.Prefix
	header  string
	named   bool // a login by the proxy must be a user's

	// A comparison with a bcrypt hash costs tens of milliseconds of a core. So one is made at a time, and a password
	// that was right is known again by its digest under a key of this process.
	comparing chan struct{}
	key       []byte
	mu        sync.Mutex
	known     map[string][]byte // digest of the right password, by name
	decoy     []byte            // a hash to compare with where there is no such user: names can't be found out by the time it takes
}

type user struct {
	rest.Caller
	hash  []byte // of the password; nil: none
	token []byte // its SHA-256; nil: none
}

var errWho = errors.New("log in: name and password, or the token, are not those of a user")

func newGate(cfg config.HTTP) *gate {
	g := &gate{guarded: cfg.Guarded(), users: map[string]user{}, comparing: make(chan struct{}, 1), key: make([]byte, 32),
		known: map[string][]byte{}}
	_, _ = rand.Read(g.key) // it never fails
	for _, u := range cfg.Users {
		known := user{Caller: rest.Caller{Name: u.Name, Role: verbs.Role(u.Role), Destinations: u.Destinations,
			Databases: u.Databases}}
		if !u.PasswordHash.Empty() {
			known.hash = []byte(u.PasswordHash.Text())
			g.decoy = known.hash
		}
		if !u.Token.Empty() {
			known.token = digest(u.Token.Text())
		} else if u.TokenSHA256 != "" {
			known.token, _ = hex.DecodeString(u.TokenSHA256) // checked
		}
		g.users[u.Name] = known
	}
	if cfg.Proxy != nil {
		g.header, g.named = cfg.Proxy.Header, cfg.Proxy.UsersOnly
		for _, from := range cfg.Proxy.From {
			g.proxies = append(g.proxies, netip.MustParsePrefix(from)) // checked
		}
	}
	return g
}

func digest(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

// within is caller for a request to one database.
func (g *gate) within(database string, r *http.Request) (rest.Caller, error) {
	c, err := g.caller(r)
	if err == nil && !c.Within(database) {
		err = fmt.Errorf("%w: %s may look into %s, and not into %s", rest.ErrForbidden, c.Name, strings.Join(c.Databases, ", "), database)
	}
	return c, err
}

// caller tells who asks: by name and password, by token, or as a proxy says. On a loopback address that nobody guards,
// somebody unknown is a viewer.
func (g *gate) caller(r *http.Request) (rest.Caller, error) {
	given := r.Header.Values("Authorization")
	if len(given) > 1 {
		return rest.Caller{}, errWho
	}
	if len(given) == 1 {
		if name, password, ok := r.BasicAuth(); ok {
			return g.password(r.Context(), name, password)
		}
		if scheme, token, _ := strings.Cut(given[0], " "); strings.EqualFold(scheme, "Bearer") {
			return g.bearer(token)
		}
		return rest.Caller{}, errWho
	}
	if logins := r.Header.Values(g.header); g.header != "" && len(logins) == 1 && logins[0] != "" && g.proxied(r) {
		if u, ok := g.users[logins[0]]; ok {
			return u.Caller, nil
		}
		if g.named {
			return rest.Caller{}, fmt.Errorf("%w: no user of the configuration has the login %.100q", rest.ErrForbidden, logins[0])
		}
		return rest.Caller{Name: logins[0], Role: verbs.Viewer}, nil
	}
	if g.guarded {
		return rest.Caller{}, errWho
	}
	// A page of another site may have its name resolved to this address, and is of the same origin then.
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return rest.Caller{}, errors.New("without a login the API answers to localhost and addresses of this machine alone")
	}
	return rest.Caller{Name: "somebody at this machine", Role: verbs.Viewer}, nil
}

// proxied reports whether the connection comes from a proxy that is trusted.
func (g *gate) proxied(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	for _, p := range g.proxies {
		if p.Contains(from.Addr().Unmap()) {
			return true
		}
	}
	return false
}

func (g *gate) bearer(token string) (rest.Caller, error) {
	sum := digest(token)
	var found rest.Caller
	for _, u := range g.users {
		if u.token != nil && subtle.ConstantTimeCompare(u.token, sum) == 1 {
			found = u.Caller
		}
	}
	if found.Name == "" {
		return found, errWho
	}
	return found, nil
}

func (g *gate) password(ctx context.Context, name, password string) (rest.Caller, error) {
	mac := hmac.New(sha256.New, g.key)
	mac.Write([]byte(password))
	seen := mac.Sum(nil)
	g.mu.Lock()
	right := g.known[name]
	g.mu.Unlock()
	u := g.users[name]
	if right != nil && hmac.Equal(right, seen) {
		return u.Caller, nil
	}
	select {
	case g.comparing <- struct{}{}:
		defer func() { <-g.comparing }()
	case <-ctx.Done():
		return rest.Caller{}, ctx.Err()
	}
	hash := u.hash
	if hash == nil {
		hash = g.decoy
	}
	if bcrypt.CompareHashAndPassword(hash, []byte(password)) != nil || u.hash == nil {
		return rest.Caller{}, errWho
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.known[name] = seen
	return u.Caller, nil
}
