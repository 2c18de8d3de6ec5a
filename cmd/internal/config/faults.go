package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Layer is where a value comes from. A higher layer prevails.
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

// Fault is one thing that is wrong with a configuration.
type Fault struct {
	// Origin is the place of the value, or of what surrounds it.
	Origin Origin
	// Path names the setting; it is empty for a fault of the file as such.
	Path string
	// Message says what is wrong and what to do. It holds no secrets.
	Message string
}

// String returns the fault as one line.
func (f Fault) String() string {
	var parts []string
	if f.Origin.Layer != FromDefault {
		parts = append(parts, f.Origin.String())
	}
	if f.Path != "" && (f.Origin.Layer != FromFlag || f.Origin.Name != f.Path) {
		parts = append(parts, f.Path)
	}
	return strings.Join(append(parts, f.Message), ": ")
}

// Faults is the error of [Load]: everything that is wrong, in the order of the
// file, then what stems from the environment, then from flags.
type Faults []Fault

// Error lists the faults, one a line.
func (f Faults) Error() string {
	var b strings.Builder
	if len(f) == 1 {
		b.WriteString("the configuration has a fault:")
	} else {
		fmt.Fprintf(&b, "the configuration has %d faults:", len(f))
	}
	for _, fault := range f {
		b.WriteString("\n  " + fault.String())
	}
	return b.String()
}

func (f Faults) sort() {
	slices.SortStableFunc(f, func(a, b Fault) int {
		return cmp.Or(
			cmp.Compare(a.Origin.Layer, b.Origin.Layer),
			cmp.Compare(a.Origin.fileName(), b.Origin.fileName()),
			cmp.Compare(a.Origin.Line, b.Origin.Line),
			cmp.Compare(a.Origin.Column, b.Origin.Column),
		)
	})
}

// nearest returns the candidate that the word was probably meant to be.
func nearest(word string, candidates []string) (string, bool) {
	best, found := "", false
	limit := min(3, 1+len(word)/4)
	for _, c := range candidates {
		if d := distance(strings.ToLower(word), strings.ToLower(c)); d <= limit {
			best, found, limit = c, true, d-1
		}
	}
	return best, found
}

// distance is the number of letters to insert, delete, replace or swap with
// their neighbour to make a into b (optimal string alignment).
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
