// Package value has what settings of the configuration and parameters of commands have in common: a text is read into
// a field, and the field's tags bound it. Errors repeat the text, so that it has to be no secret.
package value

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DurationType is that of durations.
var DurationType = reflect.TypeFor[time.Duration]()

// Set gives v, which can be set, the value that text stands for. It is a string, a bool, a whole number or a
// time.Duration, or it reads text itself: an error of its UnmarshalText is written behind the text, as "is not a size".
func Set(v reflect.Value, text string) error {
	var err error
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		err = u.UnmarshalText([]byte(text))
	} else {
		err = set(v, text)
	}
	if err != nil {
		return fmt.Errorf("%q %w", text, err)
	}
	return nil
}

func set(v reflect.Value, text string) error {
	switch {
	case v.Type() == DurationType:
		d, err := ParseDuration(text)
		if err != nil {
			return err
		}
		v.SetInt(int64(d))
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		if text != "true" && text != "false" {
			return errors.New("is neither true nor false")
		}
		v.SetBool(text == "true")
	case v.CanInt():
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || v.OverflowInt(n) {
			return errors.New("is not a whole number")
		}
		v.SetInt(n)
	default:
		panic(fmt.Sprintf("value: no text is a %v", v.Type())) // the first use of the field
	}
	return nil
}

// ParseDuration reads 1h30m. Its error is written behind the text.
func ParseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err == nil {
		return d, nil
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return 0, fmt.Errorf("has no unit; write %ss or %sms", text, text)
	}
	return 0, errors.New("is not a duration such as 5s, 100ms or 1m30s")
}

// Bounds are what the tags enum, min and max of a field demand. "" is no bound.
type Bounds struct {
	Enum     []string
	Min, Max string // inclusive: of numbers, and durations such as 5s
}

// BoundsOf reads the tags of a field.
func BoundsOf(tag reflect.StructTag) Bounds {
	b := Bounds{Min: tag.Get("min"), Max: tag.Get("max")}
	if enum := tag.Get("enum"); enum != "" {
		b.Enum = strings.Split(enum, ",")
	}
	return b
}

// Check returns what is wrong with a value, nil if nothing is.
func (b Bounds) Check(v reflect.Value) error {
	if given := v.String(); len(b.Enum) > 0 && !slices.Contains(b.Enum, given) {
		hint := ""
		if near, found := Nearest(given, b.Enum); found {
			hint = fmt.Sprintf("; did you mean %q?", near)
		}
		return fmt.Errorf("%q is not one of %s%s", given, strings.Join(b.Enum, ", "), hint)
	}
	if least, found := number(b.Min); found && v.CanInt() && v.Int() < least {
		return fmt.Errorf("%v is too small; the least is %s", v.Interface(), b.Min)
	}
	if most, found := number(b.Max); found && v.CanInt() && v.Int() > most {
		return fmt.Errorf("%v is too large; the most is %s", v.Interface(), b.Max)
	}
	return nil
}

// number reads a bound: a duration is its nanoseconds.
func number(text string) (n int64, found bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, true
	}
	d, err := time.ParseDuration(text)
	return int64(d), err == nil
}
