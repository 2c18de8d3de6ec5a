package existing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/headers"
)

// parseHeaders reads a JSON object, by the rules of package headers. Nothing and null are no headers.
func parseHeaders(text []byte) ([]outbox.Header, error) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 || string(text) == "{}" || string(text) == "null" {
		return nil, nil
	}
	if !json.Valid(text) { // the column may be a text
		return nil, errors.New("headers are not valid JSON")
	}
	all, err := headers.Parse(string(text))
	if err != nil {
		return nil, err
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
