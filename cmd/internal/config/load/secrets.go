package load

import (
	"os"
	"reflect"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/internal/value"
)

// secretFiles reads what the _file twins of secrets name, in the section at a path.
func (l *loader) secretFiles(section reflect.Value, path string) {
	fields.Walk(section, path, func(s fields.Setting) {
		if !scalar.IsSecret(s.Value.Type()) {
			return
		}
		twin, found := s.Sibling("_file")
		if !found {
			return
		}
		own, other := l.Origins[s.Path], l.Origins[twin.Path]
		hasOwn, hasOther := scalar.TextOf(s.Value) != "" && own.Layer > findings.FromDefault, twin.Value.String() != ""
		if l.Rejected[s.Path] || l.Rejected[twin.Path] {
			return
		}
		switch {
		case hasOwn && hasOther && own.Layer == other.Layer:
			l.Fault(other, twin.Path, "%s is given as well; keep one of them", s.Name())
			l.Rejected[s.Path] = true
			return
		case !hasOther:
			return
		case own.Layer > other.Layer:
			// Set to nothing counts: that takes the lower layer's file away.
			twin.Value.SetString("")
			delete(l.Origins, twin.Path)
			return
		}
		text, err := os.ReadFile(twin.Value.String())
		secret := strings.TrimRight(string(text), "\r\n")
		switch {
		case err != nil:
			l.Fault(other, twin.Path, "can't read %q: %v", twin.Value.String(), findings.Cause(err))
			l.Rejected[s.Path] = true
		case secret == "":
			l.Fault(other, twin.Path, "the file %q is empty", twin.Value.String())
			l.Rejected[s.Path] = true
		default:
			_ = value.Set(s.Value, secret) // any text is one
			l.Origins[s.Path] = other
		}
	})
}
