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

// Secret is a text that doesn't print: fmt, slog and the encodings show a mask.
// (Only %p and %w get past that, which vet refuses for a text.) Convert it to
// string to use it.
type Secret string

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return mask
}

// GoString keeps the %#v verb from printing the secret.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// Format keeps all other verbs, such as %x, from printing it.
func (s Secret) Format(f fmt.State, verb rune) { format(f, verb, s.String()) }

// LogValue masks the secret in logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText masks the secret in JSON and other encodings.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// URL is a connection string that prints without its password. Of a webhook's, whose receivers often put a secret into the
// path, the server is printed alone. Convert it to string to use it.
type URL string

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

func (u URL) String() string {
	s := string(u)
	if !strings.Contains(s, "://") {
		if !dsnStart.MatchString(s) {
			return Secret(s).String()
		}
		return dsnPassword.ReplaceAllString(s, "${1}"+mask)
	}
	// A list of NATS or RabbitMQ servers may hold a password each.
	if next := urlNext.FindStringIndex(s); next != nil {
		return URL(s[:next[0]]).String() + "," + URL(s[next[0]+1:]).String()
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

// GoString keeps the %#v verb from printing the password.
func (u URL) GoString() string { return strconv.Quote(u.String()) }

// Format keeps all other verbs, such as %x, from printing it.
func (u URL) Format(f fmt.State, verb rune) { format(f, verb, u.String()) }

// LogValue masks the password in logs.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// MarshalText masks the password in JSON and other encodings.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

func format(f fmt.State, verb rune, masked string) {
	fmt.Fprintf(f, fmt.FormatString(f, verb), masked)
}

// Format prints the secrets of a broker masked. Without it, fmt would print what
// the pointer in [Broker] refers to by itself for verbs that no pointer has,
// such as %s, and call no methods of the values in it.
func (k Kafka) Format(f fmt.State, _ rune) {
	type fields Kafka
	fmt.Fprintf(f, "%+v", fields(k))
}

// Format is like that of [Kafka].
func (n NATS) Format(f fmt.State, _ rune) {
	type fields NATS
	fmt.Fprintf(f, "%+v", fields(n))
}

// Format is like that of [Kafka].
func (r SchemaRegistry) Format(f fmt.State, _ rune) {
	type fields SchemaRegistry
	fmt.Fprintf(f, "%+v", fields(r))
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
	return false
}

func isSecret(t reflect.Type) bool { return t == secretType || t == urlType }

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
	case v.Kind() == reflect.String:
		v.SetString(text)
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
