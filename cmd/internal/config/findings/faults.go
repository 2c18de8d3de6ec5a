package findings

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

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

// Faults is everything that is wrong with a configuration, in the order of the
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

// Sort puts the faults into their order.
func (f Faults) Sort() {
	slices.SortStableFunc(f, func(a, b Fault) int {
		return cmp.Or(
			cmp.Compare(a.Origin.Layer, b.Origin.Layer),
			cmp.Compare(a.Origin.fileName(), b.Origin.fileName()),
			cmp.Compare(a.Origin.Line, b.Origin.Line),
			cmp.Compare(a.Origin.Column, b.Origin.Column),
		)
	})
}
