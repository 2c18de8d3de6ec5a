package route

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox"
)

// Table chooses a message's topic: by the first rule that matches, else by Default.
type Table struct {
	Rules []Rule

	// Default is the template of the topic of messages that no rule matches. Empty means "{topic}": they keep their
	// topic. Messages without a topic to go to must be dropped by an explicit rule; a last rule without a condition
	// drops everything that is left.
	Default string

	// Headers are changed in this order. Conditions and the topic's template see the message as it was written. The
	// template of a header's value sees the results of the earlier header rules.
	Headers []HeaderRule
}

// Rule decides what happens to the messages that it matches: they get a topic, or are dropped.
type Rule struct {
	Match

	// To is the template of the new topic; see Template.
	To string

	// Drop, instead of To, leaves the message out. It counts as delivered.
	Drop bool
}

// HeaderRule changes one header. Exactly one of Rename, Drop and Value must be set.
type HeaderRule struct {
	// Name of the header. With Drop it may be a pattern.
	Name string

	// Rename is its new name. An existing header of that name is replaced.
	Rename string

	// Drop leaves it out.
	Drop bool

	// Value is a template of its value, which replaces or adds the header; an empty result leaves it out.
	Value string
}

// Rules is a parsed Table. Safe for concurrent use.
type Rules struct {
	rules        []rule
	defaultTopic Template
	keepsTopic   bool // the default keeps the topic
	drops        bool // some rule does
	headers      []headerRule
}

type rule struct {
	Match
	to   Template
	drop bool
}

type headerRule struct {
	HeaderRule
	value Template
}

// Parse checks t and reports everything that is wrong with it.
func (t Table) Parse() (*Rules, error) {
	r := &Rules{keepsTopic: t.Default == "" || t.Default == "{topic}"}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for i, given := range t.Rules {
		n := i + 1
		if err := given.fault(); err != nil {
			fault("rule %d: %w", n, err)
		}
		if (given.To == "") != given.Drop {
			fault("rule %d: it has to say either where messages go or that they are dropped", n)
		}
		to, err := ParseTemplate(given.To)
		if err != nil {
			fault("rule %d: %w", n, err)
		}
		if given.Match == (Match{}) && n < len(t.Rules) {
			fault("rule %d: it matches everything, so those behind it never apply", n)
		}
		r.rules = append(r.rules, rule{given.Match, to, given.Drop})
		r.drops = r.drops || given.Drop
	}
	var err error
	if r.defaultTopic, err = ParseTemplate(t.Default); err != nil {
		fault("default: %w", err)
	}
	for i, h := range t.Headers {
		n := i + 1
		given := 0
		for _, there := range []bool{h.Rename != "", h.Drop, h.Value != ""} {
			if there {
				given++
			}
		}
		switch {
		case h.Name == "":
			fault("header rule %d: it has no name", n)
		case given != 1:
			fault("header rule %d: %q is to be renamed, dropped or given a value: exactly one of them", n, h.Name)
		case strings.Contains(h.Name, "*") && !h.Drop:
			fault("header rule %d: only a dropped header may be named by a pattern, not %q", n, h.Name)
		case strings.ContainsAny(h.Name+h.Rename+h.Value, "\r\n\x00"):
			fault("header rule %d: there is a line break or NUL in it", n)
		}
		value, err := ParseTemplate(h.Value)
		if err != nil {
			fault("header rule %d: %w", n, err)
		}
		r.headers = append(r.headers, headerRule{h, value})
	}
	return r, errors.Join(faults...)
}

// Empty reports whether the rules change nothing.
func (r *Rules) Empty() bool { return len(r.rules) == 0 && r.keepsTopic && len(r.headers) == 0 }

// CanDrop reports whether any rule leaves messages out.
func (r *Rules) CanDrop() bool { return r.drops }

// Drops reports whether a rule leaves m out.
func (r *Rules) Drops(m *outbox.Message) bool {
	if !r.drops {
		return false
	}
	rule := r.find(m)
	return rule != nil && rule.drop
}

// find returns the rule that applies to m. Conditions apply to the message as it was written.
func (r *Rules) find(m *outbox.Message) *rule {
	for i := range r.rules {
		if r.rules[i].Matches(m) {
			return &r.rules[i]
		}
	}
	return nil
}

// ErrDropped means that a rule leaves a message out.
var ErrDropped = errors.New("route: a rule drops the message")

// Apply sets m's topic and headers by the rules. m is the caller's own copy, whose Headers may have spare capacity; new
// names and values are newly allocated, or m's own. The error is ErrDropped, or permanent: there is no topic for the
// message.
func (r *Rules) Apply(m *outbox.Message) error {
	found := r.find(m)
	if found != nil && found.drop {
		return ErrDropped
	}
	topic := m.Topic
	switch {
	case found != nil:
		topic = found.to.Expand(m)
	case !r.keepsTopic:
		topic = r.defaultTopic.Expand(m)
	}
	if topic == "" {
		return outbox.Permanent(errors.New("route: the topic is empty for this message; a field of the destination's " +
			"topic template is missing in it"))
	}
	for i := range r.headers {
		r.headers[i].apply(m)
	}
	m.Topic = topic
	return nil
}

// Headers returns how many headers the rules may add to a message.
func (r *Rules) Headers() int { return len(r.headers) }

func (h *headerRule) apply(m *outbox.Message) {
	switch {
	case h.Drop:
		removeHeaders(m, func(name string) bool { return Glob(h.Name, name) })
	case h.Rename != "":
		value, found := m.Header(h.Name)
		if !found || h.Name == h.Rename {
			return
		}
		removeHeaders(m, func(name string) bool { return name == h.Name || name == h.Rename })
		m.Headers = append(m.Headers, outbox.Header{Name: h.Rename, Value: value})
	default:
		value := h.value.Expand(m)
		removeHeaders(m, func(name string) bool { return name == h.Name })
		if value != "" {
			m.Headers = append(m.Headers, outbox.Header{Name: h.Name, Value: value})
		}
	}
}

func removeHeaders(m *outbox.Message, which func(name string) bool) {
	kept := m.Headers[:0]
	for _, h := range m.Headers {
		if !which(h.Name) {
			kept = append(kept, h)
		}
	}
	m.Headers = kept
}
