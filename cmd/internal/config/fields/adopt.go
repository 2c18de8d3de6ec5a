package fields

import (
	"reflect"

	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

// Adopt copies values from library, a configuration of the library, into the scalars of the same names in a section.
func Adopt(section, library any) {
	adoptValue(reflect.ValueOf(section).Elem(), reflect.ValueOf(library))
}

func adoptValue(section, library reflect.Value) {
	for field, v := range section.Fields() {
		theirs := library.FieldByName(nameOf(field))
		switch {
		case !theirs.IsValid():
		case scalar.Is(v.Type()) && theirs.CanConvert(v.Type()) && (v.Kind() == reflect.String) == (theirs.Kind() == reflect.String):
			v.Set(theirs.Convert(v.Type()))
		case v.Kind() == reflect.Struct && theirs.Kind() == reflect.Struct && !scalar.IsSecret(v.Type()):
			adoptValue(v, theirs)
		}
	}
}

// nameOf is the name that a setting has in what the section configures.
func nameOf(f reflect.StructField) string {
	if name := f.Tag.Get("field"); name != "" {
		return name
	}
	return f.Name
}
