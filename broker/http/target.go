package http

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/pgoutbox/outbox"
)

// target is where requests go: a fixed URL, or a template
// literals[0] fields[0] literals[1] fields[1] ... literals[n].
type target struct {
	literals []string
	values   []func(*outbox.Message) string
	query    []bool // the field stands behind the question mark

	fixed    *url.URL // without fields, and without user
	origin   *url.URL // the server's root
	hostname string
	user     *url.Userinfo
}

// field returns the named field's value in a message, nil if there is no such field.
func field(name string) func(*outbox.Message) string {
	switch name {
	case "topic":
		return func(m *outbox.Message) string { return m.Topic }
	case "key":
		return (*outbox.Message).OrderingKey
	case "event_type":
		return func(m *outbox.Message) string { return m.EventType }
	case "aggregate_type":
		return func(m *outbox.Message) string { return m.AggregateType }
	case "aggregate_id":
		return func(m *outbox.Message) string { return m.AggregateID }
	}
	return nil
}

var errNotURL = errors.New("the address is not a URL such as https://example.com/hooks or https://example.com/hooks/{topic}")

// parseTarget reads a URL in which fields may stand in path and query. They can't choose the server. Errors
// do not repeat the URL, which may hold a secret.
func parseTarget(text string) (*target, error) {
	t := &target{}
	rest := text
	for {
		literal, after, found := strings.Cut(rest, "{")
		t.literals = append(t.literals, literal)
		if !found {
			break
		}
		name, behind, closed := strings.Cut(after, "}")
		value := field(name)
		if !closed || value == nil {
			return nil, errors.New("the URL has a brace that does not belong to one of {topic}, {key}, {event_type}, {aggregate_type}, {aggregate_id}")
		}
		t.values = append(t.values, value)
		t.query = append(t.query, strings.Contains(strings.Join(t.literals, ""), "?"))
		rest = behind
	}
	first, err := url.Parse(t.literals[0])
	if err != nil {
		return nil, errNotURL
	}
	whole, err := url.Parse(strings.Join(t.literals, "x"))
	switch {
	case err != nil || whole.Hostname() == "":
		return nil, errNotURL
	case whole.Scheme != "http" && whole.Scheme != "https":
		return nil, fmt.Errorf("the URL has the scheme %q; it must be https or http", whole.Scheme)
	case t.fields() && first.Path == "":
		return nil, errors.New("the URL has a field in its server's name; fields may stand in path and query")
	case strings.Contains(text, "#"):
		return nil, errors.New("the URL has a fragment (#…), which is never sent; leave it out")
	}
	t.user, t.hostname = whole.User, whole.Hostname()
	t.origin = &url.URL{Scheme: whole.Scheme, Host: whole.Host, Path: "/"}
	if whole.User = nil; !t.fields() {
		t.fixed = whole
	}
	if first.User != nil {
		first.User = nil
		t.literals[0] = first.String()
	}
	return t, nil
}

func (t *target) fields() bool { return len(t.values) > 0 }

// url returns m's URL, or a permanent error if m has none.
func (t *target) url(m *outbox.Message) (*url.URL, error) {
	if t.fixed != nil {
		return t.fixed, nil
	}
	var b strings.Builder
	b.WriteString(t.literals[0])
	for i, field := range t.values {
		value := field(m)
		if t.query[i] {
			b.WriteString(url.QueryEscape(value))
		} else {
			if climbs(value) {
				return nil, outbox.Permanent(fmt.Errorf("http: %q can't be part of a URL's path: empty or with the segment . or .. in it; change the message or the URL", shorten(value)))
			}
			b.WriteString(url.PathEscape(value))
		}
		b.WriteString(t.literals[i+1])
	}
	u, err := url.Parse(b.String())
	if err != nil {
		return nil, outbox.Permanent(fmt.Errorf("http: the message's URL is not valid: %w", err))
	}
	return u, nil
}

// climbs reports whether a server that decodes the escapes of a path could take text for a way to another
// place than the template says.
func climbs(text string) bool {
	for segment := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '/' || r == '\\' }) {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return strings.Trim(text, `/\`) == ""
}

func shorten(s string) string {
	const most = 100
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
