package format

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPercentEncodingIsThatOfTheBinding(t *testing.T) {
	t.Parallel()
	// The example of the HTTP binding.
	if got := string(appendPercent(nil, "Euro € 😀")); got != "Euro%20%E2%82%AC%20%F0%9F%98%80" {
		t.Errorf("%s", got)
	}
	for _, wrong := range []string{"%", "%1", "%zz", "%C0%A0", "%ff"} {
		if text, ok := UnescapePercent(wrong); ok {
			t.Errorf("%q was read as %q", wrong, text)
		}
	}
	if text, ok := UnescapePercent("%65%e2%82%ac"); !ok || text != "e€" {
		t.Errorf("%q %v", text, ok)
	}
}

func FuzzPercent(f *testing.F) {
	f.Add("Euro € 😀 100%")
	f.Fuzz(func(t *testing.T, s string) {
		encoded := string(appendPercent(nil, s))
		if strings.ContainsFunc(encoded, func(c rune) bool { return c <= ' ' || c > '~' || c == '"' }) {
			t.Fatalf("%q became %q", s, encoded)
		}
		got, ok := UnescapePercent(encoded)
		if ok != utf8.ValidString(s) || ok && got != s {
			t.Fatalf("%q became %q and then %q, %v", s, encoded, got, ok)
		}
	})
}

func FuzzString(f *testing.F) {
	f.Add("a\"\\\x00\x1f\x7f\u2028é😀")
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			return
		}
		var back string
		if err := json.Unmarshal(appendString(nil, s), &back); err != nil || back != s {
			t.Fatalf("%q became %s and then %q, %v", s, appendString(nil, s), back, err)
		}
	})
}

func FuzzDouble(f *testing.F) {
	f.Add(1.0)
	f.Add(math.SmallestNonzeroFloat64)
	f.Fuzz(func(t *testing.T, x float64) {
		text := string(appendDouble(nil, x, 64))
		if math.IsInf(x, 0) || math.IsNaN(x) {
			if !strings.HasPrefix(text, `"`) {
				t.Fatalf("%v is %s", x, text)
			}
			return
		}
		back, err := strconv.ParseFloat(text, 64)
		if err != nil || back != x || !strings.Contains(text, ".") || strings.Contains(text, "e") || strings.Contains(text, "+") {
			t.Fatalf("%v is %s", x, text)
		}
	})
}
