package config

import (
	"os"
	"strings"
)

// secretFiles reads what the _file twins of secrets name.
func (l *loader) secretFiles() {
	walk(l.config, "", func(s setting) {
		if !isSecret(s.value.Type()) {
			return
		}
		twin, found := s.sibling("_file")
		if !found {
			return
		}
		own, other := l.origins[s.path], l.origins[twin.path]
		hasOwn, hasOther := textOf(s.value) != "" && own.Layer > FromDefault, twin.value.String() != ""
		if l.rejected[s.path] || l.rejected[twin.path] {
			return
		}
		switch {
		case hasOwn && hasOther && own.Layer == other.Layer:
			l.fault(other, twin.path, "%s is given as well; keep one of them", s.name())
			l.rejected[s.path] = true
			return
		case !hasOther:
			return
		case own.Layer > other.Layer:
			// Set to nothing counts: that takes the lower layer's file away.
			twin.value.SetString("")
			delete(l.origins, twin.path)
			return
		}
		text, err := os.ReadFile(twin.value.String())
		secret := strings.TrimRight(string(text), "\r\n")
		switch {
		case err != nil:
			l.fault(other, twin.path, "can't read %q: %v", twin.value.String(), cause(err))
			l.rejected[s.path] = true
		case secret == "":
			l.fault(other, twin.path, "the file %q is empty", twin.value.String())
			l.rejected[s.path] = true
		default:
			setTextOf(s.value, secret)
			l.origins[s.path] = other
		}
	})
}
