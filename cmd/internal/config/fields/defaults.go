package fields

import "reflect"

// Default returns a section of the type T with its defaults.
func Default[T any]() T { return New(reflect.TypeFor[T]()).Interface().(T) }

// New returns a value of a type, with its defaults, that can be set.
func New(t reflect.Type) reflect.Value {
	v := reflect.New(t)
	if s, ok := v.Interface().(interface{ SetDefaults() }); ok {
		s.SetDefaults()
	}
	return v.Elem()
}
