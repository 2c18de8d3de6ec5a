package load

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

// written writes a value so that it is read back as the same one.
func written(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return duration(x)
	case fmt.Stringer: // Size, Secret, URL
		if scalar.IsText(v.Type()) {
			return quote(x.String())
		}
		return x.String()
	case string:
		return quote(x)
	default:
		return fmt.Sprint(x)
	}
}

// duration leaves out the zero units of 1m0s and 1h0m0s.
func duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// quote writes a text that means the same in a block and within [ ]. A text in
// JSON is one in YAML too.
func quote(s string) string {
	s = literal(s)
	if plainText(s) {
		return s
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(fmt.Sprintf("config: %v", err)) // a string always encodes
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func plainText(s string) bool {
	if s == "" {
		return false
	}
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '/' || r == '.' && i > 0
		if !letter && (i == 0 || !(r >= '0' && r <= '9' || strings.ContainsRune("_-@+=", r))) {
			return false
		}
	}
	switch strings.ToLower(s) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		return false
	}
	return true
}

// literal returns text that expand leaves as it was.
func literal(text string) string { return strings.ReplaceAll(text, "${", "$${") }
