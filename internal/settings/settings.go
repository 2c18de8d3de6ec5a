// Package settings completes and checks configurations, of the library and of the adapters. Each Config has one method
// that states every default and every check, and reports all faults at once.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
)

// Default replaces a zero value by its default.
func Default[T comparable](v *T, standard T) {
	var zero T
	if *v == zero {
		*v = standard
	}
}

// Given reports whether there is a value: v is neither nil nor a nil pointer, such as the pool that couldn't be opened.
func Given(v any) bool {
	value := reflect.ValueOf(v)
	return value.IsValid() && (value.Kind() != reflect.Pointer || !value.IsNil())
}

// Fault is a fault of a configuration.
type Fault struct {
	// Field is the field of Config that is at fault: Topic, or TLS.CAFile, or CreateQueues[1].Name. "" means several.
	Field string
	Err   error
}

func (f *Fault) Error() string {
	if f.Field == "" {
		return f.Err.Error()
	}
	return f.Field + ": " + f.Err.Error()
}

func (f *Fault) Unwrap() error { return f.Err }

// within returns f as a fault of the Config in whose field the faulty Config is.
func (f *Fault) within(field string) *Fault {
	if field != "" && f.Field != "" && f.Field[0] != '[' {
		field += "."
	}
	return &Fault{field + f.Field, f.Err}
}

// Faults collects faults. The zero value has none.
type Faults struct{ list []error }

// Need notes a fault of a field unless ok.
func (f *Faults) Need(ok bool, field, format string, args ...any) {
	if !ok {
		f.Add(field, fmt.Errorf(format, args...))
	}
}

// Add notes an error, if it isn't nil, as the fault of a field. If the field's value is a Config itself, its faults are
// noted one by one.
func (f *Faults) Add(field string, err error) {
	for _, fault := range List(err) {
		f.list = append(f.list, fault.within(field))
	}
}

// Err joins all faults; nil if there are none.
func (f *Faults) Err() error { return errors.Join(f.list...) }

// List returns the faults in err, without their common prefix. An error that is not a Fault gets no field.
func List(err error) []*Fault {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if fault, ok := e.(*Fault); ok {
			return []*Fault{fault}
		}
		if joined, ok := e.(interface{ Unwrap() []error }); ok && e.Error() == errors.Join(joined.Unwrap()...).Error() {
			var list []*Fault
			for _, each := range joined.Unwrap() {
				list = append(list, List(each)...)
			}
			return list
		}
	}
	if err == nil {
		return nil
	}
	return []*Fault{{Err: err}}
}

// Within replaces a zero value by its default, and notes a fault unless the value is between least and most.
func Within[T cmp.Ordered](f *Faults, field string, v *T, standard, least, most T) {
	Default(v, standard)
	f.Need(*v >= least && *v <= most, field, "%v, it must be %v to %v", *v, least, most)
}

// Positive replaces a zero value by its default, and notes a fault if the value is negative.
func Positive[T ~int | ~int64](f *Faults, field string, v *T, standard T) {
	Default(v, standard)
	f.Need(*v > 0, field, "%v, it must be positive", *v)
}

// AtLeast replaces a zero value by its default, and notes a fault if the value is less than least.
func AtLeast[T cmp.Ordered](f *Faults, field string, v *T, standard, least T) {
	Default(v, standard)
	f.Need(*v >= least, field, "%v, it must be at least %v", *v, least)
}
