package route

import (
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/template"
)

// Template is a text with fields of a message, such as "shop.{aggregate_type}". The fields are {topic}, {key} (the
// ordering key), {event_type}, {aggregate_type}, {aggregate_id}, {content_type}, {id} and {header.NAME}; a missing one
// is empty. The zero Template is the empty text. Safe for concurrent use.
type Template struct{ parsed template.Template }

// ParseTemplate reads a template. Braces can only be written around fields.
func ParseTemplate(text string) (Template, error) {
	t, err := template.Parse(text, append(template.Names(), "content_type", "id", template.AnyHeader)...)
	switch {
	case err != nil:
		return Template{}, fmt.Errorf("template %q: %w", text, err)
	case strings.Contains(t.With(""), "}"):
		return Template{}, fmt.Errorf("template %q: a } stands without its {", text)
	}
	return Template{*t}, nil
}

// Append appends the text for m to b. Except for {id}, it allocates only what b needs.
func (t *Template) Append(b []byte, m *outbox.Message) []byte { return t.parsed.Append(b, m) }

// Expand returns the text for m.
func (t *Template) Expand(m *outbox.Message) string { return t.parsed.Expand(m) }
