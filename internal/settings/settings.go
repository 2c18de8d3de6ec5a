// Package settings completes and checks configurations: of the library, and of the adapters. A Config has one method that
// states each default and each check, and reports all faults at once.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
)

// Default sets what is zero to its default.
func Default[T comparable](v *T, standard T) {
	var zero T
	if *v == zero {
		*v = standard
	}
}

// Logger is l, or a silent one.
func Logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}

// Fault is what is wrong with a configuration.
type Fault struct {
	// Field is the field of Config that it is about: Topic, or TLS.CAFile, or CreateQueues[1].Name. "" is several.
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

// within returns f as a fault of the Config that is the field's value.
func (f *Fault) within(field string) *Fault {
	if field != "" && f.Field != "" && f.Field[0] != '[' {
		field += "."
	}
	return &Fault{field + f.Field, f.Err}
}

// Faults gathers faults. The zero value has none.
type Faults struct{ list []error }

// Need notes a fault of a field unless ok.
func (f *Faults) Need(ok bool, field, format string, args ...any) {
	if !ok {
		f.Add(field, fmt.Errorf(format, args...))
	}
}

// Add notes an error, if it is one, as the fault of a field. The faults of a Config that is the field's value are noted one
// by one.
func (f *Faults) Add(field string, err error) {
	for _, fault := range List(err) {
		f.list = append(f.list, fault.within(field))
	}
}

// Err joins all faults; nil if there are none.
func (f *Faults) Err() error { return errors.Join(f.list...) }

// List returns the faults that err tells of, without words in front of them all. An error that is no fault is one without a
// field.
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

// Within sets a value that is zero to its default, and notes a fault unless it is least to most.
func Within[T cmp.Ordered](f *Faults, field string, v *T, standard, least, most T) {
	Default(v, standard)
	f.Need(*v >= least && *v <= most, field, "%v, it must be %v to %v", *v, least, most)
}

// Positive sets a value that is zero to its default, and notes a fault if it is negative.
func Positive[T ~int | ~int64](f *Faults, field string, v *T, standard T) {
	Default(v, standard)
	f.Need(*v > 0, field, "%v, it must be positive", *v)
}

// AtLeast sets a value that is zero to its default, and notes a fault if it is less than least.
func AtLeast[T cmp.Ordered](f *Faults, field string, v *T, standard, least T) {
	Default(v, standard)
	f.Need(*v >= least, field, "%v, it must be at least %v", *v, least)
}
