package http

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/template"
)

// endpoint is where requests go: a fixed URL, or a template.
type endpoint struct {
	template *template.Template
	query    []bool // the field is in the query

	fixed    *url.URL // without fields and credentials
	origin   *url.URL // the server's root
	hostname string
	user     *url.Userinfo
}

var errNotURL = errors.New("the address is not a URL such as https://example.com/hooks or https://example.com/hooks/{topic}")

// parseEndpoint reads a URL whose path and query may have fields. Fields can't choose the server. Errors don't repeat
// the URL, which may contain a secret.
func parseEndpoint(text string) (*endpoint, error) {
	if text == "" {
		return nil, errors.New("not given")
	}
	parsed, err := template.Parse(text)
	var fault *template.Fault
	if errors.As(err, &fault) {
		return nil, fmt.Errorf("the URL has a brace that does not belong to one of {%s}", strings.Join(fault.Expected, "}, {"))
	}
	t := &endpoint{template: parsed}
	for i := range parsed.Fields {
		t.query = append(t.query, strings.Contains(strings.Join(parsed.Literals[:i+1], ""), "?"))
	}
	first, err := url.Parse(parsed.Literals[0])
	if err != nil {
		return nil, errNotURL
	}
	whole, err := url.Parse(parsed.With("x"))
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
		parsed.Literals[0] = first.String()
	}
	return t, nil
}

func (t *endpoint) fields() bool { return !t.template.Constant() }

// url returns m's URL, or a permanent error if m has none.
func (t *endpoint) url(m *outbox.Message) (*url.URL, error) {
	if t.fixed != nil {
		return t.fixed, nil
	}
	var b strings.Builder
	b.WriteString(t.template.Literals[0])
	for i, field := range t.template.Fields {
		value := field(m)
		if t.query[i] {
			b.WriteString(url.QueryEscape(value))
		} else {
			if climbs(value) {
				return nil, outbox.Permanent(fmt.Errorf("http: %q can't be part of a URL's path: empty or with the "+
					"segment . or .. in it; change the message or the URL", printed.Short(value)))
			}
			b.WriteString(url.PathEscape(value))
		}
		b.WriteString(t.template.Literals[i+1])
	}
	u, err := url.Parse(b.String())
	if err != nil {
		return nil, outbox.Permanent(fmt.Errorf("http: the message's URL is not valid: %w", err))
	}
	return u, nil
}

// climbs reports whether a server that decodes a path's escapes could read text as a path outside the template's.
func climbs(text string) bool {
	for segment := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '/' || r == '\\' }) {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return strings.Trim(text, `/\`) == ""
}
