package outbox

import (
	"encoding/json"
	"testing"
	"unicode/utf8"
)

func FuzzHeadersBecomeTheSameJSON(f *testing.F) {
	f.Add("name", "value")
	f.Add(`"\/`, "\x00\x1f\x7f\u2028<&>漢🙂")
	f.Fuzz(func(t *testing.T, name, value string) {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return // refused before
		}
		text := encodeHeaders([]Header{{name, value}, {name + "x", value}}, traceContext{})
		var got map[string]string
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if len(got) != 2 || got[name] != value || got[name+"x"] != value {
			t.Fatalf("%q: %q became %s", name, value, text)
		}
	})
}
