// Package exit has the codes with which the program ends, and the errors that carry one.
package exit

import (
	"errors"
	"fmt"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// Codes, a contract for scripts.
const (
	OK       = 0
	Failed   = 1
	Usage    = 2
	Config   = 3
	NotFound = 4
	Nothing  = 5
)

// ErrPrinted ends the program without another word: what is wrong has been printed.
var ErrPrinted = errors.New("")

type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

// With returns err with the code that the program ends with.
func With(code int, err error) error { return coded{err, code} }

// Usagef returns an error of a command line that can't be used.
func Usagef(format string, args ...any) error { return With(Usage, fmt.Errorf(format, args...)) }

// Code is the code of an error.
func Code(err error) int {
	var c coded
	switch {
	case errors.As(err, &c):
		return c.code
	case errors.Is(err, admin.ErrNotFound), errors.Is(err, mapping.ErrNotFound), errors.Is(err, schema.ErrNoTable):
		return NotFound
	}
	return Failed
}
