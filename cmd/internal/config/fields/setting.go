// Package fields walks the tree of settings by reflection: keys and paths, defaults, and the names that the library has
// for settings.
package fields

import (
	"reflect"

	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

// Setting is one value in the tree of the configuration.
type Setting struct {
	Path   string
	Value  reflect.Value
	Field  reflect.StructField // of which it is the value; zero for an element
	Parent reflect.Value       // the struct with that field
}

// Name is the key of the setting.
func (s Setting) Name() string { return Key(s.Field) }

// Sibling returns the setting of the same section whose name has the suffix.
func (s Setting) Sibling(suffix string) (Setting, bool) {
	if !s.Parent.IsValid() {
		return Setting{}, false
	}
	f, found := ByKey(s.Parent.Type(), s.Name()+suffix)
	if !found {
		return Setting{}, false
	}
	return Setting{Path: s.Path + suffix, Value: s.Parent.FieldByIndex(f.Index), Field: f, Parent: s.Parent}, true
}

// Walk visits every value in the order of the format, a section before its
// settings. Sections that are nil are not entered.
func Walk(v reflect.Value, path string, visit func(Setting)) {
	walkSetting(Setting{Path: path, Value: v}, visit)
}

func walkSetting(s Setting, visit func(Setting)) {
	v := s.Value
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
		s.Value = v
	}
	visit(s)
	switch {
	case scalar.Is(v.Type()):
	case v.Kind() == reflect.Struct:
		for _, f := range reflect.VisibleFields(v.Type()) {
			walkSetting(Setting{Path: Join(s.Path, Key(f)), Value: v.FieldByIndex(f.Index), Field: f, Parent: v}, visit)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			walkSetting(Setting{Path: Element(s.Path, i), Value: v.Index(i)}, visit)
		}
	}
}

// Key is the name of a field in the format.
func Key(f reflect.StructField) string { return f.Tag.Get("json") }

// ByKey returns the field of a section that has the key.
func ByKey(t reflect.Type, name string) (reflect.StructField, bool) {
	for _, f := range reflect.VisibleFields(t) {
		if Key(f) == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// Keys returns the keys of a section.
func Keys(t reflect.Type) []string {
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		names = append(names, Key(f))
	}
	return names
}
