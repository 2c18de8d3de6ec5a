package rabbitmq

import (
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox/internal/template"
)

// parseTemplate reads Config.Exchange or Config.RoutingKey.
func parseTemplate(what, text string) (*template.Template, error) {
	t, err := template.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s template %q: %w", what, text, err)
	}
	literals := t.With("")
	if strings.Contains(literals, "}") {
		return nil, fmt.Errorf("%s template %q has a brace without its counterpart", what, text)
	}
	if len(literals) > shortString {
		return nil, fmt.Errorf("%s template: %d bytes are more than the %d that AMQP takes", what, len(literals), shortString)
	}
	return t, nil
}
