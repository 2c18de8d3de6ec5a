// Package scalar has the single values that settings have: texts, hidden ones too, sizes, durations, numbers.
package scalar

import "reflect"

// Types whose values are written as one scalar, besides the built-in ones.
var (
	SizeType   = reflect.TypeFor[Size]()
	SecretType = reflect.TypeFor[Secret]()
	URLType    = reflect.TypeFor[URL]()
)

// Is reports whether values of a type are written as one scalar.
func Is(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64:
		return true
	}
	return IsSecret(t)
}

// IsSecret reports whether a type masks its text.
func IsSecret(t reflect.Type) bool { return t == SecretType || t == URLType }

// IsText reports whether values of a type are texts, hidden ones too.
func IsText(t reflect.Type) bool { return t.Kind() == reflect.String || IsSecret(t) }

// TextOf returns a text, a hidden one too.
func TextOf(v reflect.Value) string {
	if h, ok := v.Interface().(interface{ Text() string }); ok {
		return h.Text()
	}
	return v.String()
}
