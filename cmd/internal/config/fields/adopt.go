package fields

import (
	"reflect"

	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

// Adopt copies the values of library, a configuration of the library, into the scalars of the same names in a section.
// section is a pointer.
func Adopt(section, library any) {
	pair(reflect.ValueOf(section).Elem(), reflect.ValueOf(library), func(setting, field reflect.Value) {
		if scalar.Is(setting.Type()) {
			transfer(setting, field)
		}
	})
}

// Assign copies the settings of a section into the fields of the same names of library, except zero values: library
// keeps its own there. library is a pointer. A setting that has another type there, such as a file for its content, is
// not assigned.
func Assign(library, section any) {
	pair(reflect.ValueOf(section), reflect.ValueOf(library).Elem(), func(setting, field reflect.Value) {
		if !setting.IsZero() {
			transfer(field, setting)
		}
	})
}

// pair calls visit with each setting of a section and the field of the same name in library.
func pair(section, library reflect.Value, visit func(setting, field reflect.Value)) {
	for f, setting := range section.Fields() {
		field := library.FieldByName(nameOf(f))
		switch {
		case !field.IsValid():
		case setting.Kind() == reflect.Struct && field.Kind() == reflect.Struct && !scalar.IsSecret(setting.Type()):
			pair(setting, field, visit)
		default:
			visit(setting, field)
		}
	}
}

// transfer sets one value to another, if its type can have it.
func transfer(to, from reflect.Value) {
	switch {
	case from.Type().AssignableTo(to.Type()):
		to.Set(from)
	case scalar.IsSecret(from.Type()) && to.Kind() == reflect.String:
		to.SetString(scalar.TextOf(from))
	case structs(to) && structs(from):
		list := reflect.MakeSlice(to.Type(), from.Len(), from.Len())
		for i := range from.Len() {
			Assign(list.Index(i).Addr().Interface(), from.Index(i).Interface())
		}
		to.Set(list)
	case to.CanInt() && from.CanInt() && to.OverflowInt(from.Int()): // the section's bounds report it
	case scalar.Is(from.Type()) && from.CanConvert(to.Type()) && (to.Kind() == reflect.String) == (from.Kind() == reflect.String):
		to.Set(from.Convert(to.Type()))
	}
}

// structs reports whether a value is a list of structs.
func structs(v reflect.Value) bool {
	return v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct
}

// nameOf returns the name of the library's field for a setting.
func nameOf(f reflect.StructField) string {
	if name := f.Tag.Get("field"); name != "" {
		return name
	}
	return f.Name
}
