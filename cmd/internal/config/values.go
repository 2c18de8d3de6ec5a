package config

import (
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
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

// Size is a number of bytes, written as a number or with a unit: B, kB, MB and
// GB, or KiB, MiB and GiB.
type Size int64

var sizeUnits = []struct {
	name  string
	bytes int64
}{
	{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1}, {"", 1},
}

// String returns the size in the largest binary unit that leaves it whole.
func (s Size) String() string {
	for _, unit := range sizeUnits[:3] {
		if s != 0 && int64(s)%unit.bytes == 0 {
			return strconv.FormatInt(int64(s)/unit.bytes, 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalText returns what String does.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func parseSize(text string) (Size, bool) {
	digits := strings.TrimRight(text, "BiKkMG")
	for _, unit := range sizeUnits {
		if text[len(digits):] != unit.name {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/unit.bytes {
			return 0, false
		}
		return Size(n * unit.bytes), true
	}
	return 0, false
}

// Types whose values are written as one scalar, besides the built-in ones.
var (
	durationType = reflect.TypeFor[time.Duration]()
	sizeType     = reflect.TypeFor[Size]()
	secretType   = reflect.TypeFor[Secret]()
	urlType      = reflect.TypeFor[URL]()
)

func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64:
		return true
	}
	return isSecret(t)
}

func isSecret(t reflect.Type) bool { return t == secretType || t == urlType }

func isText(t reflect.Type) bool { return t.Kind() == reflect.String || isSecret(t) }

// textOf returns a text, a hidden one too.
func textOf(v reflect.Value) string {
	if h, ok := v.Interface().(interface{ Text() string }); ok {
		return h.Text()
	}
	return v.String()
}

func setTextOf(v reflect.Value, text string) {
	if h, ok := v.Addr().Interface().(interface{ set(string) }); ok {
		h.set(text)
		return
	}
	v.SetString(text)
}

// setText gives a scalar the value that the text stands for, or says what was
// expected. The complaint never repeats a secret.
func setText(v reflect.Value, text string) (complaint string) {
	switch {
	case v.Type() == durationType:
		d, err := time.ParseDuration(text)
		if err != nil {
			if _, err := strconv.ParseFloat(text, 64); err == nil {
				return fmt.Sprintf("%q has no unit; write %ss or %sms", text, text, text)
			}
			return fmt.Sprintf("%q is not a duration such as 5s, 100ms or 1m30s", text)
		}
		v.SetInt(int64(d))
	case v.Type() == sizeType:
		s, ok := parseSize(text)
		if !ok {
			return fmt.Sprintf("%q is not a size such as 16MiB, 500kB or 1048576", text)
		}
		v.SetInt(int64(s))
	case isText(v.Type()):
		setTextOf(v, text)
	case v.Kind() == reflect.Bool:
		if text != "true" && text != "false" {
			return fmt.Sprintf("%q is neither true nor false", text)
		}
		v.SetBool(text == "true")
	default:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Sprintf("%q is not a whole number", text)
		}
		v.SetInt(int64(n))
	}
	return ""
}
