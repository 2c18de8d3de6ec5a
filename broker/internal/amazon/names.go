package amazon

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/internal/template"
)

// Names decides where a message goes: by a table of topics, else by a template.
type Names struct {
	table    map[string]string
	template *template.Template
	fault    func(name string) string
}

// NewNames returns the names of a table, by topic, and of a template, which has the fields {topic}, {aggregate_type}
// and {event_type}. fault returns what is wrong with a name, "" for a valid one. A dot in a field becomes a hyphen,
// because names at Amazon have no dots. Faults of the template are noted under field, faults of the table under field
// with an s appended.
func NewNames(faults *settings.Faults, field, text string, table map[string]string, fault func(name string) string) *Names {
	n := &Names{table: maps.Clone(table), fault: fault}
	for _, topic := range slices.Sorted(maps.Keys(table)) {
		complaint := fault(table[topic])
		faults.Need(complaint == "", field+"s", "%q, for the topic %q, %s", table[topic], topic, complaint)
	}
	var err error
	if n.template, err = template.Parse(text, "topic", "aggregate_type", "event_type"); err != nil {
		faults.Need(false, field, "template %q: %w", text, err)
		return n
	}
	// With a plain name in place of every field, the fault is the template's own.
	complaint := fault(n.template.With("x"))
	faults.Need(complaint == "", field, "template %q %s", text, complaint)
	return n
}

// Name returns the name of m's target, or a permanent error if it can't be a name.
func (n *Names) Name(m *outbox.Message) (string, error) {
	if name, found := n.table[m.Topic]; found {
		return name, nil
	}
	var b strings.Builder
	b.WriteString(n.template.Literals[0])
	for i, field := range n.template.Fields {
		b.WriteString(strings.ReplaceAll(field(m), ".", "-"))
		b.WriteString(n.template.Literals[i+1])
	}
	name := b.String()
	if complaint := n.fault(name); complaint != "" {
		return "", outbox.Permanent(fmt.Errorf("%q %s; change the message's topic, or where it is sent to", printed.Short(name), complaint))
	}
	return name, nil
}

// Fixed returns the names that don't depend on a message: those of the table, and the template if it has
// no fields.
func (n *Names) Fixed() []string {
	names := slices.Collect(maps.Values(n.table))
	if n.template.Constant() {
		names = append(names, n.template.Literals[0])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// All returns the names as written: those of the table, and the template with "x" for its fields.
func (n *Names) All() []string {
	return append(slices.Collect(maps.Values(n.table)), n.template.With("x"))
}

// FIFO ends the name of every queue and topic that keeps an order, and of no other.
const FIFO = ".fifo"

// NameFault returns why a queue or topic (kind) can't have this name, or may not be used; "" if it may. most is the
// longest name in characters.
func NameFault(kind, name string, most int, unordered bool) string {
	bare, isFIFO := strings.CutSuffix(name, FIFO)
	switch {
	case bare == "":
		return "has no name of a " + kind + " in it"
	case len(name) > most:
		return fmt.Sprintf("is longer than the %d characters of a %s's name", most, kind)
	case !isFIFO && !unordered:
		return "is a standard " + kind + ", which keeps no order: end the name in .fifo, or set unordered"
	}
	for i := range len(bare) {
		c := bare[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && c != '_' && c != '-' {
			return fmt.Sprintf("can't be a %s's name: it takes letters, digits, hyphens and underscores, and this has %q", kind, c)
		}
	}
	return ""
}
