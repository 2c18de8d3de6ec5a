package config

import "reflect"

// A section that configures a package of the library has that package's defaults, so that there is one place for each.

// Standard returns a section of the type T with its defaults.
func Standard[T any]() T { return newDefault(reflect.TypeFor[T]()).Interface().(T) }

// newDefault returns a value of a type, with its defaults, that can be set.
func newDefault(t reflect.Type) reflect.Value {
	v := reflect.New(t)
	if s, ok := v.Interface().(interface{ SetDefaults() }); ok {
		s.SetDefaults()
	}
	return v.Elem()
}
