package headers_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/headers"
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
		if i := slices.IndexFunc(all, func(o outbox.Header) bool { return o.Name == h.Name }); i >= 0 && len(all) <= outbox.MaxHeaders {
			all[i] = h
			continue
		}
		all = append(all, h)
	}
	return all, true
}

// halved reports whether one of the strings that headers are made of has a half of a surrogate pair.
// encoding/json replaces it by U+FFFD, and so there are more of them than were written.
func halved(text string) bool {
	replaced := func(text string) int { return strings.Count(text, "\uFFFD") }
	half := func(literal []byte, value string) bool {
		written := strings.ToLower(strings.ReplaceAll(string(literal), `\\`, ""))
		return replaced(value) > replaced(string(literal))+strings.Count(written, `\ufffd`)
	}
	d := json.NewDecoder(strings.NewReader(text))
	_, _ = d.Token()
	for at := d.InputOffset(); d.More(); at = d.InputOffset() {
		name, _ := d.Token()
		if half([]byte(text[at:d.InputOffset()]), name.(string)) {
			return true
		}
		var raw json.RawMessage
		var value string
		if _ = d.Decode(&raw); raw[0] == '"' && json.Unmarshal(raw, &value) == nil && half(raw, value) {
			return true
		}
	}
	return false
}

// FuzzHeaders compares the parser with encoding/json on every text that is JSON, which is all that a json can be; on
// others it must only not fail badly.
func FuzzHeaders(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a": "b"}`, `{"a": "b", "c": 1.5e10, "d": null, "e": true, "f": {"g": ["]", "}", "\""]}, "h": []}`,
		`{"a": "\"\\\/\b\f\t\u00fc\ud834\udd1e"}`, `{"a": "\ud834"}`, `{"a": "\ud834\u0041"}`, `{"a": "\udd1e\ud834"}`, `{"\u0061": ""}`,
		`[1]`, `"x"`, `1`, `null`, `true`, `{"": "x"}`, `{"a": "x\ny"}`, `{"a": "\u0000"}`, ` { "a" : "b" , "c" : [ 1 , 2 ] } `,
		`{"a": "b"`, `{"a": "b\`, `{"a": "\u12`, `{"a" "b"}`,
		`{"a": }`, `{"a": "b",}`, ``, `{`, `{"a": "\x"}`, `{"ü": "𝄞"}`, "{\"a\": \"\xff\"}",
		`{"a": "b", "c": "d", "\u0061": "e"}`, `{"a": "\ufffd\\ud834"}`, `{"a": {"b": "\ud834"}}`, `{"a": "\ufffd\uD834\u"}`,
		"{\n\t\"a\":\r\"b\" }", `{"a": 1e1000000}`,
	} {
		f.Add(seed)
	}
	var many []string // beyond the limit of a message, names are not compared
	for i := range outbox.MaxHeaders + 2 {
		many = append(many, fmt.Sprintf(`"%d": ""`, i))
	}
	f.Add("{" + strings.Join(append(many, many[0]), ",") + "}")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := headers.Parse(text)
		// encoding/json replaces what isn't UTF-8, and a text of the database is UTF-8.
		if !json.Valid([]byte(text)) || !bytes.Equal([]byte(text), bytes.ToValidUTF8([]byte(text), nil)) {
			return
		}
		want, ok := reference(text)
		if ok = ok && !halved(text); ok != (err == nil) {
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
