package scalar

import (
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
)

// mask stands for what must not be seen.
const mask = "***"

// Secret is a text that doesn't print: fmt, slog and the encodings show a mask. Text returns it.
type Secret = masked[all]

// URL is a connection string that prints without its password. Of a webhook's, whose receivers often put a secret into
// the path, the server is printed alone. Text returns it.
type URL = masked[credentials]

// NewSecret returns a secret of this text.
func NewSecret(text string) (s Secret) {
	s.set(text)
	return s
}

// NewURL returns a URL of this text.
func NewURL(text string) (u URL) {
	u.set(text)
	return u
}

// masked is a text that prints as M masks it. The pointer is for fmt: where a verb fits the value around it badly, such
// as %s for a pointer to a struct, fmt calls no methods and prints what it finds, here an address.
type masked[M interface{ mask(string) string }] struct{ text *string }

// Text is the text itself.
func (m masked[M]) Text() string {
	if m.text == nil {
		return ""
	}
	return *m.text
}

// Empty reports whether there is no text.
func (m masked[M]) Empty() bool { return m.Text() == "" }

func (m *masked[M]) set(text string) {
	m.text = nil
	if text != "" {
		m.text = &text
	}
}

// String is the text as M masks it.
func (m masked[M]) String() string {
	var how M
	return how.mask(m.Text())
}

// GoString masks it for the %#v verb.
func (m masked[M]) GoString() string { return strconv.Quote(m.String()) }

// Format masks it for all other verbs, such as %x.
func (m masked[M]) Format(f fmt.State, verb rune) {
	fmt.Fprintf(f, fmt.FormatString(f, verb), m.String())
}

// LogValue masks it in logs.
func (m masked[M]) LogValue() slog.Value { return slog.StringValue(m.String()) }

// UnmarshalText takes any text.
func (m *masked[M]) UnmarshalText(text []byte) error {
	m.set(string(text))
	return nil
}

// MarshalText masks it in JSON and other encodings.
func (m masked[M]) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

type all struct{}

func (all) mask(s string) string {
	if s == "" {
		return ""
	}
	return mask
}

type credentials struct{}

var (
	// The greedy user information reaches to the last @, so that a password
	// with unescaped @, / or ? in it is covered.
	urlAuthority = regexp.MustCompile(`^(\s*[A-Za-z][A-Za-z0-9+.-]*://)(?s:(.*)@)?`)
	urlUser      = regexp.MustCompile(`^[\w.%-]*$`)
	urlQuery     = regexp.MustCompile(`(?i)([?&][^=&]*(?:pass|secret|token|key)[^=&]*=)[^&]*`)
	urlNext      = regexp.MustCompile(`,\s*(?:nats|tls|wss?|amqps?)://`)
	urlPath      = regexp.MustCompile(`(?is)^(\s*https?://[^/?#]*)[/?#].+$`)
	dsnStart     = regexp.MustCompile(`^\s*\w+\s*=`)
	dsnPassword  = regexp.MustCompile(`(?is)(\w*(?:pass|secret|token)\w*\s*=\s*)(?:'(?:[^'\\]|\\.)*'?|(?:\\.|[^\s\\])*)`)
)

// SplitURLs returns the URLs of a list of servers; those behind the first one have the scheme next.
func SplitURLs(text string) []string {
	urls := urlNext.Split(text, -1)
	for i, one := range urls {
		if !strings.Contains(one, "://") {
			urls[i] = "next://" + one
		}
	}
	return urls
}

func (c credentials) mask(s string) string {
	if !strings.Contains(s, "://") {
		if !dsnStart.MatchString(s) {
			return all{}.mask(s)
		}
		return dsnPassword.ReplaceAllString(s, "${1}"+mask)
	}
	// A list of NATS or RabbitMQ servers may hold a password each.
	if next := urlNext.FindStringIndex(s); next != nil {
		return c.mask(s[:next[0]]) + "," + c.mask(s[next[0]+1:])
	}
	m := urlAuthority.FindStringSubmatchIndex(s)
	if m == nil {
		return mask
	}
	if m[4] >= 0 {
		user, _, password := strings.Cut(s[m[4]:m[5]], ":")
		if token := !password && !strings.HasPrefix(s, "postgres"); token || !urlUser.MatchString(user) {
			user = mask
		}
		if password {
			user += ":" + mask
		}
		s = s[:m[3]] + user + "@" + s[m[1]:]
	}
	if m := urlPath.FindStringSubmatch(s); m != nil {
		return m[1] + "/" + mask
	}
	return urlQuery.ReplaceAllString(s, "${1}"+mask)
}
