package mapped

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox"
)

// parseHeaders reads a JSON object. Values that are not strings become their JSON text. If a name comes twice, which
// json allows and jsonb doesn't, the last value counts.
func parseHeaders(text []byte) ([]outbox.Header, error) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 || string(text) == "{}" || string(text) == "null" {
		return nil, nil
	}
	if text[0] != '{' {
		return nil, fmt.Errorf("headers are not a JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("headers are not valid JSON: %w", err)
	}
	var all []outbox.Header
	at := make(map[string]int) // an object of a hundred thousand names must not hold the relay up
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("headers are not valid JSON: %w", err)
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, fmt.Errorf("headers are not valid JSON: %w", err)
		}
		h := outbox.Header{Name: name.(string), Value: string(raw)} // the names of an object are strings
		if raw[0] == '"' {
			if err := json.Unmarshal(raw, &h.Value); err != nil {
				return nil, fmt.Errorf("headers are not valid JSON: %w", err)
			}
		}
		if i, twice := at[h.Name]; twice {
			all[i] = h
			continue
		}
		at[h.Name] = len(all)
		all = append(all, h)
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("headers are not valid JSON: %w", err)
	}
	for _, h := range all {
		if err := checkHeader(h); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// checkHeader refuses headers that could forge other headers at the broker or on the way to it.
func checkHeader(h outbox.Header) error {
	switch {
	case h.Name == "":
		return fmt.Errorf("headers have an empty name")
	case strings.ContainsAny(h.Name, "\r\n\x00"):
		return fmt.Errorf("header %q has CR, LF or NUL in its name", h.Name)
	case strings.ContainsAny(h.Value, "\r\n\x00"):
		return fmt.Errorf("header %q has CR, LF or NUL in its value", h.Name)
	}
	return nil
}
