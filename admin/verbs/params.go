package verbs

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Param is one parameter of a verb, from the field of a struct. The field's tags say the rest: json is its name, help what it
// means; arg names one that stands behind the command without a flag; default, enum, min and max (inclusive) and required mean
// what they say; role:"operator" keeps it from viewers.
type Param struct {
	Name     string // in JSON, in a query, and with - in place of _ as a flag
	Help     string
	Arg      string // the name in the command's usage, "" for a flag
	Required bool
	Default  string
	Enum     []string
	Min, Max string // "" is no bound
	Role     Role
	Type     reflect.Type // string, bool, int, int64, Duration, time.Time or []string

	index []int
}

// Duration is a length of time that JSON and command lines write as 1h30m.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes it as 1h30m.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads 1h30m.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// Fault is a parameter that can't be used. Nothing was looked at or changed.
type Fault struct {
	Field string // a parameter's name; "" if it is about several
	Text  string
}

func (f *Fault) Error() string { return strings.TrimSpace(f.Field + " " + f.Text) }

func fault(field, format string, args ...any) error {
	return &Fault{field, fmt.Sprintf(format, args...)}
}

// paramsOf reads the fields of a struct, those of embedded ones in their place.
func paramsOf(t reflect.Type) (list []Param) {
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || name == "" || name == "-" {
			continue
		}
		p := Param{Name: name, Help: f.Tag.Get("help"), Arg: f.Tag.Get("arg"), Required: f.Tag.Get("required") == "true",
			Default: f.Tag.Get("default"), Min: f.Tag.Get("min"), Max: f.Tag.Get("max"), Role: Viewer, Type: f.Type, index: f.Index}
		if enum := f.Tag.Get("enum"); enum != "" {
			p.Enum = strings.Split(enum, ",")
		}
		if f.Tag.Get("role") == string(Operator) {
			p.Role = Operator
		}
		list = append(list, p)
	}
	return list
}

// Repeats reports whether it is a list.
func (p Param) Repeats() bool { return p.Type.Kind() == reflect.Slice }

// Set gives the parameter the value that a text stands for; a list grows by it.
func (p Param) Set(params any, text string) error { return p.set(reflect.ValueOf(params).Elem(), text) }

func (p Param) set(params reflect.Value, text string) error {
	v := params.FieldByIndex(p.index)
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if u.UnmarshalText([]byte(text)) != nil {
			if p.Type == reflect.TypeFor[time.Time]() {
				return fault(p.Name, "is %q, which is no time such as 2026-05-01T12:00:00Z", text)
			}
			return fault(p.Name, "is %q, which is no duration such as 1h30m", text)
		}
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fault(p.Name, "is %q: want true or false", text)
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fault(p.Name, "is %q: want a whole number", text)
		}
		v.SetInt(n)
	case reflect.Slice:
		v.Set(reflect.Append(v, reflect.ValueOf(text)))
	default:
		panic(fmt.Sprintf("verbs: no parameter may be a %v", p.Type)) // the first use of the verb
	}
	return nil
}

// Texts returns the parameter's values as Set takes them; none if it has the zero value.
func (p Param) Texts(params any) []string {
	v := reflect.ValueOf(params).Elem().FieldByIndex(p.index)
	switch value := v.Interface().(type) {
	case []string:
		return value
	case time.Time:
		if !value.IsZero() {
			return []string{value.Format(time.RFC3339Nano)}
		}
		return nil
	}
	if v.IsZero() {
		return nil
	}
	return []string{fmt.Sprint(v.Interface())}
}

// check reports what the tags forbid.
func (p Param) check(v reflect.Value) error {
	if p.Required && v.IsZero() {
		return fault(p.Name, "is missing: %s", p.Help)
	}
	switch value := v.Interface().(type) {
	case string:
		return p.checkText(value)
	case []string:
		for _, text := range value {
			if err := p.checkText(text); err != nil {
				return err
			}
		}
	case Duration:
		low, _ := time.ParseDuration(p.Min) // zero without one
		if value < 0 {
			return fault(p.Name, "is %v, it can't be negative", value)
		}
		if value < Duration(low) && value != 0 {
			return fault(p.Name, "is %v, it must be at least %v", value, low)
		}
	case int, int64:
		low, lowErr := strconv.ParseInt(p.Min, 10, 64)
		high, highErr := strconv.ParseInt(p.Max, 10, 64)
		if n := v.Int(); lowErr == nil && n < low || highErr == nil && n > high {
			if highErr != nil {
				return fault(p.Name, "is %d, it must be at least %d", n, low)
			}
			return fault(p.Name, "is %d, it must be %d to %d", n, low, high)
		}
	}
	return nil
}

func (p Param) checkText(text string) error {
	if text != "" && len(p.Enum) > 0 {
		for _, choice := range p.Enum {
			if text == choice {
				return nil
			}
		}
		return fault(p.Name, "is %q: want %s", text, or(p.Enum))
	}
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return fault(p.Name, "is no text that a database can hold: it must be UTF-8 without NUL")
	}
	return nil
}

// or lists choices.
func or(choices []string) string {
	last := len(choices) - 1
	if last == 0 {
		return choices[0]
	}
	return strings.Join(choices[:last], ", ") + " or " + choices[last]
}
