package load

import (
	"os"
	"reflect"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/internal/value"
)

// loader holds the state of one call of Config.
type loader struct {
	*findings.Report
	config   reflect.Value // of Config
	environ  map[string]string
	unopened bool
	// unreadable is set when the file, or YAML elsewhere, could not be parsed.
	unreadable bool
}

func (l *loader) lookup(name string) (string, bool) {
	value, set := l.environ[name]
	return value, set
}

// set sets a scalar and notes its origin.
func (l *loader) set(v reflect.Value, text, path string, at findings.Origin) {
	if err := value.Set(v, text); err != nil {
		l.Fault(at, path, "%v", err)
		return
	}
	delete(l.Rejected, path)
	l.Origins[path] = at
}

// list sets a list of texts, from YAML or separated by commas.
func (l *loader) list(v reflect.Value, text, path string, at findings.Origin) {
	if strings.HasPrefix(strings.TrimSpace(text), "[") {
		l.yaml(text, v, path, at)
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, 1))
	l.Origins[path] = at
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			i := v.Len()
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
			l.set(v.Index(i), item, fields.Element(path, i), at)
		}
	}
}

func (l *loader) yaml(text string, v reflect.Value, path string, at findings.Origin) {
	d := &decoder{loader: l, origin: at}
	if strings.TrimSpace(text) == "" {
		text = "{}"
	}
	d.document([]byte(text), v, path)
}

// file reads a file into the setting at a path.
func (l *loader) file(path string, into reflect.Value, at string) {
	if path == "" {
		return
	}
	origin := findings.Origin{Layer: findings.FromFile, Name: path}
	text, err := os.ReadFile(path)
	if err != nil {
		l.unreadable = true
		l.Fault(origin, "", "can't read the file: %v", findings.Cause(err))
		return
	}
	d := &decoder{loader: l, origin: origin}
	d.document(text, into, at)
}
