// Package scalar has the single values that settings have: texts, hidden ones too, sizes, durations, numbers.
package scalar

import (
	"fmt"
	"reflect"
	"strconv"
	"time"
)

// Types whose values are written as one scalar, besides the built-in ones.
var (
	DurationType = reflect.TypeFor[time.Duration]()
	SizeType     = reflect.TypeFor[Size]()
	SecretType   = reflect.TypeFor[Secret]()
	URLType      = reflect.TypeFor[URL]()
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

// SetTextOf sets a text, a hidden one too.
func SetTextOf(v reflect.Value, text string) {
	if h, ok := v.Addr().Interface().(interface{ set(string) }); ok {
		h.set(text)
		return
	}
	v.SetString(text)
}

// SetText gives a scalar the value that the text stands for, or says what was
// expected. The complaint never repeats a secret.
func SetText(v reflect.Value, text string) (complaint string) {
	switch {
	case v.Type() == DurationType:
		d, err := time.ParseDuration(text)
		if err != nil {
			if _, err := strconv.ParseFloat(text, 64); err == nil {
				return fmt.Sprintf("%q has no unit; write %ss or %sms", text, text, text)
			}
			return fmt.Sprintf("%q is not a duration such as 5s, 100ms or 1m30s", text)
		}
		v.SetInt(int64(d))
	case v.Type() == SizeType:
		s, ok := parseSize(text)
		if !ok {
			return fmt.Sprintf("%q is not a size such as 16MiB, 500kB or 1048576", text)
		}
		v.SetInt(int64(s))
	case IsText(v.Type()):
		SetTextOf(v, text)
	case v.Kind() == reflect.Bool:
		if text != "true" && text != "false" {
			return fmt.Sprintf("%q is neither true nor false", text)
		}
		v.SetBool(text == "true")
	default:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Sprintf("%q is not a whole number", text)
		}
		v.SetInt(int64(n))
	}
	return ""
}
