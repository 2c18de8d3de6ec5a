package polling

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
)

// reference reads headers with encoding/json.
func reference(text string) (all []outbox.Header, ok bool) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, false
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, false
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, false
		}
		h := outbox.Header{Name: name.(string), Value: string(raw)}
		if raw[0] == '"' {
			if err := json.Unmarshal(raw, &h.Value); err != nil {
				return nil, false
			}
		}
		if h.Name == "" || strings.ContainsAny(h.Name+h.Value, "\r\n\x00") {
			return nil, false
		}
		all = append(all, h)
	}
	return all, true
}

// FuzzHeaders compares the parser with encoding/json on every text that is JSON, which is all that a
// jsonb can be; on others it must only not fail badly.
func FuzzHeaders(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a": "b"}`, `{"a": "b", "c": 1.5e10, "d": null, "e": true, "f": {"g": ["]", "}", "\""]}, "h": []}`,
		`{"a": "\"\\\/\b\f\t\u00fc\ud834\udd1e"}`, `{"a": "\ud834"}`, `{"a": "\ud834\u0041"}`, `{"a": "\udd1e\ud834"}`, `{"\u0061": ""}`,
		`[1]`, `"x"`, `1`, `null`, `true`, `{"": "x"}`, `{"a": "x\ny"}`, `{"a": "\u0000"}`, ` { "a" : "b" , "c" : [ 1 , 2 ] } `,
		`{"a": "b"`, `{"a": "b\`, `{"a": "\u12`, `{"a" "b"}`, `{"a": }`, `{"a": "b",}`, ``, `{`, `{"a": "\x"}`, `{"ü": "𝄞"}`, "{\"a\": \"\xff\"}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var a arena
		got, err := appendHeaders(nil, text, &a)
		// encoding/json replaces what isn't UTF-8, and a text of the database is UTF-8.
		if !json.Valid([]byte(text)) || !bytes.Equal([]byte(text), bytes.ToValidUTF8([]byte(text), nil)) {
			return
		}
		want, ok := reference(text)
		if ok != (err == nil) {
			t.Fatalf("%q: error %v, encoding/json reads it: %v", text, err, ok)
		}
		if !ok {
			return
		}
		if len(got) != len(want) {
			t.Fatalf("%q: %q, want %q", text, got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%q: %q, want %q", text, got[i], want[i])
			}
		}
	})
}
