package config

import "reflect"

// setting is one value in the tree of the configuration.
type setting struct {
	path   string
	value  reflect.Value
	field  reflect.StructField // of which it is the value; zero for an element
	parent reflect.Value       // the struct with that field
}

func (s setting) name() string { return key(s.field) }

// sibling returns the setting of the same section whose name has the suffix.
func (s setting) sibling(suffix string) (setting, bool) {
	if !s.parent.IsValid() {
		return setting{}, false
	}
	f, found := fieldByKey(s.parent.Type(), s.name()+suffix)
	if !found {
		return setting{}, false
	}
	return setting{path: s.path + suffix, value: s.parent.FieldByIndex(f.Index), field: f, parent: s.parent}, true
}

// walk visits every value in the order of the format, a section before its
// settings. Sections that are nil are not entered.
func walk(v reflect.Value, path string, visit func(setting)) {
	walkSetting(setting{path: path, value: v}, visit)
}

func walkSetting(s setting, visit func(setting)) {
	v := s.value
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
		s.value = v
	}
	visit(s)
	switch {
	case isScalar(v.Type()):
	case v.Kind() == reflect.Struct:
		for _, f := range reflect.VisibleFields(v.Type()) {
			walkSetting(setting{path: join(s.path, key(f)), value: v.FieldByIndex(f.Index), field: f, parent: v}, visit)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			walkSetting(setting{path: element(s.path, i), value: v.Index(i)}, visit)
		}
	}
}

// key is the name of a field in the format.
func key(f reflect.StructField) string { return f.Tag.Get("json") }

func fieldByKey(t reflect.Type, name string) (reflect.StructField, bool) {
	for _, f := range reflect.VisibleFields(t) {
		if key(f) == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func keys(t reflect.Type) []string {
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		names = append(names, key(f))
	}
	return names
}
