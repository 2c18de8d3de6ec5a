package findings

import "fmt"

// Layer is a source of values. A higher layer prevails.
type Layer int

// The layers, from the lowest to the highest.
const (
	FromDefault Layer = iota
	FromFile
	FromEnvironment
	FromFlag
)

// Origin is the place of a value. The zero value is the defaults.
type Origin struct {
	Layer Layer
	// Name is the file, the environment variable or the overridden path.
	Name string
	// Line and Column count from 1; they are 0 outside of files.
	Line, Column int
	// Variables are those that the file's text refers to.
	Variables []string
}

// String returns the place in the form that editors and terminals recognise:
// file:line:column, or a variable's or a flag's name.
func (o Origin) String() string {
	switch {
	case o.Layer == FromDefault:
		return "default"
	case o.Layer == FromFlag:
		return "flag " + o.Name
	case o.Line > 0:
		return fmt.Sprintf("%s:%d:%d", o.Name, o.Line, o.Column)
	}
	return o.Name
}

// fileName is empty elsewhere, where the order of discovery is the order.
func (o Origin) fileName() string {
	if o.Layer == FromFile {
		return o.Name
	}
	return ""
}
