package outbox

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// MaxTypeBytes is the limit of AggregateType, EventType and ContentType, each. AggregateID has that of
// a key, because it can stand for one.
const MaxTypeBytes = 1024

// ValidationError is why a message can't be written.
type ValidationError struct {
	Index  int    // of the message among those of the call, from 0; -1 from [Message.Validate]
	Field  string // "Topic", or `Headers["name"]`
	Reason string // what is wrong, with the limit and the actual size where there is a limit
	Limit  int    // of the field, 0 if the fault isn't a size
	Size   int    // actual, in Limit's unit: bytes, or headers
}

func (e *ValidationError) Error() string {
	if e.Index < 0 {
		return e.Field + " " + e.Reason
	}
	return fmt.Sprintf("message %d: %s %s", e.Index, e.Field, e.Reason)
}

// maxFaults bounds the text of an error for a large batch of bad messages.
const maxFaults = 20

// faults collects the faults of a call's messages.
type faults struct {
	found []error
	more  int
}

func (f *faults) add(e ValidationError) {
	if len(f.found) == maxFaults {
		f.more++
		return
	}
	f.found = append(f.found, &e)
}

func (f *faults) tooLarge(index int, field string, size, limit int, unit string) {
	f.add(ValidationError{Index: index, Field: field, Limit: limit, Size: size,
		Reason: fmt.Sprintf("has %d %s, the limit is %d", size, unit, limit)})
}

func (f *faults) err() error {
	if f.more > 0 {
		return errors.Join(append(f.found, fmt.Errorf("and %d more faults", f.more))...)
	}
	return errors.Join(f.found...)
}

// limits are a writer's own, beside those that every message has.
type limits struct {
	maxPayload int // 0: MaxPayloadBytes
	sequences  bool
}

func (l *limits) validate(msgs []Message) error {
	var found faults
	for i := range msgs {
		l.validateOne(&found, i, &msgs[i])
	}
	return found.err()
}

// Validate reports, as ValidationErrors, every field of m that is beyond the limits of a message. It doesn't check the
// payload's size, which WriterConfig limits for writers and the broker for deliveries, nor names of headers that a
// writer refuses because some brokers can't carry them.
func (m *Message) Validate() error {
	var found faults
	found.fields(-1, m)
	return found.err()
}

// fields checks all fields whose limits are the same for all writers.
func (f *faults) fields(i int, m *Message) {
	f.topic(i, m.Topic)
	f.text(i, "Key", m.Key, MaxKeyBytes)
	f.text(i, "AggregateType", m.AggregateType, MaxTypeBytes)
	f.text(i, "AggregateID", m.AggregateID, MaxKeyBytes)
	f.text(i, "EventType", m.EventType, MaxTypeBytes)
	f.text(i, "ContentType", m.ContentType, MaxTypeBytes)
	f.headers(i, m.Headers)
}

func (l *limits) validateOne(f *faults, i int, m *Message) {
	f.fields(i, m)
	if limit := cmp.Or(l.maxPayload, MaxPayloadBytes); len(m.Payload) > limit {
		f.tooLarge(i, "Payload", len(m.Payload), limit, "bytes")
	}
	if _, given := m.Header(SequenceHeader); given && l.sequences {
		f.add(ValidationError{Index: i, Field: headerField(SequenceHeader),
			Reason: "is there, and the writer sets it (WriterConfig.Sequences)"})
	}
	if year := m.DeliverAt.UTC().Year(); !m.DeliverAt.IsZero() && (year < 1970 || year > 9999) {
		f.add(ValidationError{Index: i, Field: "DeliverAt", Reason: fmt.Sprintf(
			"is %s, it must be in the years 1970 to 9999", m.DeliverAt.UTC().Format(time.RFC3339))})
	}
}

func (f *faults) topic(i int, topic string) {
	if topic == "" {
		f.add(ValidationError{Index: i, Field: "Topic", Reason: "is empty, and every message needs one"})
		return
	}
	if len(topic) > MaxTopicBytes {
		f.tooLarge(i, "Topic", len(topic), MaxTopicBytes, "bytes")
	}
	if plain(topic, '!') {
		return
	}
	for at, r := range topic {
		if unicode.IsControl(r) || unicode.IsSpace(r) {
			f.add(ValidationError{Index: i, Field: "Topic", Reason: fmt.Sprintf(
				"contains white space or a control character (%+q at byte %d)", r, at)})
			return
		}
	}
	if reason := textFault(topic); reason != "" {
		f.add(ValidationError{Index: i, Field: "Topic", Reason: reason})
	}
}

func (f *faults) text(i int, field, text string, limit int) {
	if len(text) > limit {
		f.tooLarge(i, field, len(text), limit, "bytes")
	}
	if reason := textFault(text); reason != "" {
		f.add(ValidationError{Index: i, Field: field, Reason: reason})
	}
}

func (f *faults) headers(i int, headers []Header) {
	size := 0
	for n, h := range headers {
		size += len(h.Name) + len(h.Value)
		switch reason := textFault(h.Name); {
		case h.Name == "":
			f.add(ValidationError{Index: i, Field: "Headers[" + strconv.Itoa(n) + "]", Reason: "has an empty name"})
		case reason != "":
			f.add(ValidationError{Index: i, Field: headerField(h.Name), Reason: "has a name that " + reason})
		case i < 0: // a row of a table may have any other name: not every destination minds
		case ReservedHeader(h.Name):
			f.add(ValidationError{Index: i, Field: headerField(h.Name),
				Reason: "has a name that begins with outbox-, as only headers of the relay do; rename it"})
		case !token(h.Name):
			f.add(ValidationError{Index: i, Field: headerField(h.Name),
				Reason: "has a name that no protocol can carry: it has letters of ASCII, digits and " + tokenMarks})
		case named(headers[:n], h.Name):
			f.add(ValidationError{Index: i, Field: headerField(h.Name), Reason: "is there twice"})
		}
		if reason := textFault(h.Value); reason != "" {
			f.add(ValidationError{Index: i, Field: headerField(h.Name), Reason: "has a value that " + reason})
		}
		if n == MaxHeaders {
			break // more faults wouldn't help, and finding repeated names is quadratic
		}
	}
	if len(headers) > MaxHeaders {
		f.tooLarge(i, "Headers", len(headers), MaxHeaders, "headers")
	} else if size > MaxHeaderBytes {
		f.tooLarge(i, "Headers", size, MaxHeaderBytes, "bytes")
	}
}

// tokenMarks are the characters that names of headers may have beside letters and digits (RFC 9110, token).
const tokenMarks = "!#$%&'*+-.^_`|~"

func token(name string) bool {
	for _, c := range []byte(name) {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && strings.IndexByte(tokenMarks, c) < 0 {
			return false
		}
	}
	return true
}

func headerField(name string) string {
	if len(name) > 64 {
		name = name[:64] + "…"
	}
	return "Headers[" + strconv.Quote(name) + "]"
}

func named(headers []Header, name string) bool {
	for i := range headers {
		if headers[i].Name == name {
			return true
		}
	}
	return false
}
