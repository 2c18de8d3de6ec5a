package route

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox"
)

// Match is a condition on a message: each given pattern must match its field. The zero Match matches every message.
type Match struct {
	Topic         string
	EventType     string
	AggregateType string
	ContentType   string

	// Header is the name of a header that must be present, with a value that HeaderValue matches. An empty HeaderValue
	// matches any value.
	Header      string
	HeaderValue string
}

// Matches reports whether m meets the condition.
func (x *Match) Matches(m *outbox.Message) bool {
	if x.Topic != "" && !Glob(x.Topic, m.Topic) || x.EventType != "" && !Glob(x.EventType, m.EventType) ||
		x.AggregateType != "" && !Glob(x.AggregateType, m.AggregateType) || x.ContentType != "" && !Glob(x.ContentType, m.ContentType) {
		return false
	}
	if x.Header == "" {
		return true
	}
	value, found := m.Header(x.Header)
	return found && (x.HeaderValue == "" || Glob(x.HeaderValue, value))
}

func (x *Match) fault() error {
	if x.Header == "" && x.HeaderValue != "" {
		return fmt.Errorf("a header's value %q without its name", x.HeaderValue)
	}
	return nil
}

// Filter selects the messages of a destination.
type Filter struct {
	// Topics are patterns, of which one must match; patterns that begin with ! must not match. With only such patterns,
	// or with none, every other topic is selected.
	Topics []string

	// Any has conditions. If there are any, at least one must be met.
	Any []Match
}

// Check reports everything that is wrong with f.
func (f *Filter) Check() error {
	var faults []error
	for i := range f.Any {
		if f.Any[i] == (Match{}) {
			faults = append(faults, fmt.Errorf("condition %d is empty, and so wants every message; leave all conditions out for that", i+1))
		}
		if err := f.Any[i].fault(); err != nil {
			faults = append(faults, fmt.Errorf("condition %d: %w", i+1, err))
		}
	}
	return errors.Join(faults...)
}

// Wants reports whether m passes.
func (f *Filter) Wants(m *outbox.Message) bool {
	if !f.wantsTopic(m.Topic) {
		return false
	}
	for i := range f.Any {
		if f.Any[i].Matches(m) {
			return true
		}
	}
	return len(f.Any) == 0
}

func (f *Filter) wantsTopic(topic string) bool {
	wanted, only := false, false
	for _, pattern := range f.Topics {
		if excluded, found := strings.CutPrefix(pattern, "!"); found {
			if Glob(excluded, topic) {
				return false
			}
			continue
		}
		only = true
		wanted = wanted || Glob(pattern, topic)
	}
	return wanted || !only
}

// Glob matches a pattern.
func Glob(pattern, text string) bool {
	prefix, pattern, found := strings.Cut(pattern, "*")
	if !found {
		return prefix == text
	}
	text, found = strings.CutPrefix(text, prefix)
	for found {
		part, rest, more := strings.Cut(pattern, "*")
		if !more {
			return strings.HasSuffix(text, part)
		}
		_, text, found = strings.Cut(text, part)
		pattern = rest
	}
	return false
}
