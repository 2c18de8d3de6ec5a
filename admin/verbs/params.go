package verbs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgoutbox/outbox/internal/value"
)

// Param is one parameter of a verb, from the field of a struct. The field's tags say the rest: json is its name, help
// what it means; arg names one that stands behind the command without a flag; default, enum, min and max (inclusive)
// and required mean what they say; role:"operator" keeps it from viewers.
type Param struct {
	Name     string // in JSON, in a query, and with - in place of _ as a flag
	Help     string
	Arg      string // the name in the command's usage, "" for a flag
	Flag     bool   // whether a flag gives it; one that has Arg as well may be given either way
	Required bool
	Default  string
	value.Bounds
	Role Role
	Of   string       // what its values are, by the tag of: such as "destination"; else its name
	Type reflect.Type // string, bool, int, int64, Duration, time.Time or []string

	index []int
}

// Duration is a length of time that JSON and command lines write as 1h30m.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes it as 1h30m.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// DurationPattern is how a Duration is written. It has no sign, and what it lets pass doesn't overflow.
const DurationPattern = `^([0-9]{1,6}(\.[0-9]{1,9})?h)?([0-9]{1,7}(\.[0-9]{1,9})?m)?([0-9]{1,9}(\.[0-9]{1,9})?s)?([0-9]{1,9}(\.[0-9]{1,9})?(ms|us|µs|ns))?$`

var durationForm = regexp.MustCompile(DurationPattern)

// UnmarshalText reads 1h30m.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := value.ParseDuration(string(text))
	if err == nil && !durationForm.Match(text) {
		err = errors.New("is not a duration such as 1h30m")
	}
	*d = Duration(parsed)
	return err
}

// TimeForm is how a moment is written: as a time, or as how long ago it was.
const TimeForm = "a time such as 2026-05-01T12:00:00Z, or how long ago, such as 1h30m"

// ParseTime reads a moment that is written as [TimeForm] says.
func ParseTime(text string) (time.Time, error) {
	var ago Duration
	if text != "" && ago.UnmarshalText([]byte(text)) == nil {
		return time.Now().Add(-time.Duration(ago)), nil
	}
	return time.Parse(time.RFC3339, text)
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
			Default: f.Tag.Get("default"), Bounds: value.BoundsOf(f.Tag), Role: Viewer, Of: cmp.Or(f.Tag.Get("of"), name), Type: f.Type,
			index: f.Index}
		if f.Tag.Get("role") == string(Operator) {
			p.Role = Operator
		}
		if p.Type == reflect.TypeFor[time.Time]() {
			p.Help += ": " + TimeForm
		}
		list = append(list, p)
	}
	// A destination is named in one way everywhere: by --destination, or alone where nothing else stands there.
	alone := !slices.ContainsFunc(list, func(p Param) bool { return p.Arg != "" })
	for i := range list {
		p := &list[i]
		if p.Name == "destination" && alone {
			p.Arg = "NAME"
		}
		p.Flag = p.Arg == "" || p.Name == "destination"
	}
	return list
}

// Behind reports whether Command writes it behind the command: of a destination, only where it has to be named.
func (p Param) Behind() bool { return p.Arg != "" && (p.Required || !p.Flag) }

// Repeats reports whether it is a list.
func (p Param) Repeats() bool { return p.Type.Kind() == reflect.Slice }

// Set gives the parameter the value that a text stands for; a list grows by it.
func (p Param) Set(params any, text string) error { return p.set(reflect.ValueOf(params).Elem(), text) }

func (p Param) set(params reflect.Value, text string) error {
	v := params.FieldByIndex(p.index)
	if at, ok := v.Addr().Interface().(*time.Time); ok {
		var err error
		if *at, err = ParseTime(text); err != nil {
			return fault(p.Name, "%q is not %s", text, TimeForm)
		}
		return nil
	}
	if p.Repeats() {
		v.Set(reflect.Append(v, reflect.ValueOf(text)))
		return nil
	}
	err := value.Set(v, text)
	if err == nil && text == "" && len(p.Enum) > 0 {
		err = p.Check(v)
	}
	if err != nil {
		return &Fault{p.Name, err.Error()}
	}
	return nil
}

// Decode gives the parameter the value that is written as JSON. Numbers, texts and lists are not converted into each
// other.
func (p Param) Decode(params any, text []byte) error {
	v := reflect.ValueOf(params).Elem().FieldByIndex(p.index)
	v.SetZero()
	if f, err := strconv.ParseFloat(string(text), 64); err == nil && f == math.Trunc(f) && math.Abs(f) <= 1<<53 {
		text = strconv.AppendInt(nil, int64(f), 10) // to JSON 1.0 is a whole number, to package json it isn't
	}
	into := v.Addr().Interface()
	var moment string
	if p.Type == reflect.TypeFor[time.Time]() {
		into = &moment
	}
	err := json.Unmarshal(text, into)
	if into == any(&moment) && err == nil {
		err = p.Set(params, moment)
	}
	if err == nil && p.Repeats() { // package json takes null for ""
		err = json.Unmarshal(text, &[]notNull{})
	}
	if err != nil || string(text) == "null" || !utf8.Valid(text) {
		return fault(p.Name, "is not what it must be: %s", p.Want())
	}
	if len(p.Enum) > 0 && v.IsZero() {
		return &Fault{p.Name, p.Check(v).Error()}
	}
	return nil
}

// notNull is a value of JSON that isn't null.
type notNull struct{}

func (*notNull) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return errors.New("null")
	}
	return nil
}

// Want says what values there are.
func (p Param) Want() string {
	switch p.Type {
	case reflect.TypeFor[time.Time]():
		return TimeForm
	case reflect.TypeFor[Duration]():
		return "a duration such as 1h30m"
	}
	switch p.Type.Kind() {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list of texts"
	}
	return "a whole number"
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
	if v.IsZero() && p.Default == "" {
		return nil
	}
	return []string{fmt.Sprint(v.Interface())}
}

// Given returns the parameters that don't have their defaults.
func (v Verb) Given(params any) (given []Param) {
	standard := v.New()
	for _, p := range v.Params {
		if !slices.Equal(p.Texts(params), p.Texts(standard)) {
			given = append(given, p)
		}
	}
	return given
}

// Value returns the parameter's value.
func (p Param) Value(params any) any {
	return reflect.ValueOf(params).Elem().FieldByIndex(p.index).Interface()
}

// check reports what the tags forbid.
func (p Param) check(v reflect.Value) error {
	if p.Required && v.IsZero() {
		return fault(p.Name, "is missing: %s", p.Help)
	}
	switch given := v.Interface().(type) {
	case string:
		return p.checkText(v)
	case []string:
		for i := range given {
			if err := p.checkText(v.Index(i)); err != nil {
				return err
			}
		}
	case Duration, int, int64:
		if _, optional := given.(Duration); optional && v.IsZero() && p.Default == "" {
			return nil
		}
		if err := p.Check(v); err != nil {
			return &Fault{p.Name, err.Error()}
		}
	}
	return nil
}

func (p Param) checkText(v reflect.Value) error {
	text := v.String()
	if text != "" && len(p.Enum) > 0 {
		if err := p.Check(v); err != nil {
			return &Fault{p.Name, err.Error()}
		}
		return nil
	}
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return fault(p.Name, "is no text that a database can hold: it must be UTF-8 without NUL")
	}
	return nil
}
