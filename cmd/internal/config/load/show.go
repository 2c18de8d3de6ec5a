package load

import (
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

// commentColumn is where the origins stand, if the values leave room.
const commentColumn = 48

// Show returns the configuration in effect as YAML, each value with the place
// that it comes from. Secrets are masked; apart from them, loading it gives
// the same configuration.
func (l *Loaded) Show() string {
	s := &printer{origins: l.origins}
	s.section(reflect.ValueOf(l.Config), "", "")
	return s.text.String()
}

type printer struct {
	origins map[string]findings.Origin
	text    strings.Builder
}

func (s *printer) section(v reflect.Value, path, indent string) {
	for _, f := range reflect.VisibleFields(v.Type()) {
		s.setting(fields.Setting{Path: fields.Join(path, fields.Key(f)), Value: v.FieldByIndex(f.Index), Field: f, Parent: v}, indent)
	}
}

func (s *printer) setting(x fields.Setting, indent string) {
	v, start := x.Value, indent+x.Name()+":"
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch {
	case scalar.IsSecret(v.Type()):
		if twin, found := x.Sibling("_file"); !found || twin.Value.String() == "" {
			s.line(start+" "+written(v), x.Path)
		}
	case scalar.Is(v.Type()):
		// One of a secret and its twin is shown.
		if secret, found := x.Sibling("_file"); found && scalar.IsSecret(secret.Value.Type()) {
			return
		}
		if base, found := strings.CutSuffix(x.Name(), "_file"); found && v.String() == "" {
			if f, found := fields.ByKey(x.Parent.Type(), base); found && scalar.IsSecret(f.Type) {
				return
			}
		}
		s.line(start+" "+written(v), x.Path)
	case v.Kind() == reflect.Struct && v.NumField() == 0:
		s.line(start+" {}", x.Path)
	case v.Kind() == reflect.Struct:
		s.line(start, "")
		s.section(v, x.Path, indent+"  ")
	case scalar.Is(v.Type().Elem()):
		var items []string
		for i := range v.Len() {
			items = append(items, written(v.Index(i)))
		}
		s.line(start+" ["+strings.Join(items, ", ")+"]", x.Path)
	case v.Len() == 0: // a list of sections
	default:
		s.line(start, "")
		for i := range v.Len() {
			item := &printer{origins: s.origins}
			item.section(v.Index(i), fields.Element(x.Path, i), indent+"    ")
			s.text.WriteString(indent + "  - " + strings.TrimPrefix(item.text.String(), indent+"    "))
		}
	}
}

// line writes a value and where it comes from; a section has no path.
func (s *printer) line(text, path string) {
	s.text.WriteString(text)
	if path != "" {
		o := s.origins[path]
		comment := o.String()
		switch {
		case o.Layer == findings.FromFile:
			comment = fmt.Sprintf("%s:%d", o.Name, o.Line)
		case o.Layer == findings.FromEnvironment:
			comment = "env " + o.Name
		}
		for _, name := range o.Variables {
			comment += ", ${" + name + "}"
		}
		pad := max(2, commentColumn-utf8.RuneCountInString(text))
		s.text.WriteString(strings.Repeat(" ", pad) + "# " + comment)
	}
	s.text.WriteByte('\n')
}
