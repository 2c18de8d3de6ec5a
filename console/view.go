package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/admin/verbs"
)

// base is what all pages have in common.
type base struct {
	options Options
	pages   map[string]page // by their paths
	files   map[string]file
}

// file is an asset. Its name has its digest, so that it may be kept for good.
type file struct {
	kind string
	text []byte
}

// asset is the address of a file, by its digest.
func (s *base) asset(name string) address {
	sum := sha256.Sum256(s.files[name].text)
	return address("asset-" + hex.EncodeToString(sum[:6]) + "-" + name)
}

// page is one of the console's.
type page struct {
	title string
	// verb is the one whose result the page shows; "" if the page is from memory.
	verb string
	body func(v *view) any
	// still pages are drawn when they are asked for, and not again.
	still bool
	// filter names the parameters that select what a list has. acts are what may be done with all of it, and with those
	// that are ticked.
	filter []string
	acts   []sheet.Act
}

// view is one request of a page.
type view struct {
	*base
	ctx    context.Context
	page   page
	path   string
	query  url.Values
	caller rest.Caller
	now    time.Time

	report *health.Report
	age    time.Duration
	err    error
}

func (v *view) get(name string) string { return v.query.Get(name) }

// given returns the pairs of the query with the given names.
func (v *view) given(names ...string) (pairs []string) {
	for _, name := range names {
		for _, value := range v.query[name] {
			if value != "" {
				pairs = append(pairs, name, value)
			}
		}
	}
	return pairs
}

// operates reports whether the caller may act somewhere.
func (v *view) operates() bool { return v.caller.Role == verbs.Operator }

// may reports whether the caller may run a verb with these parameters.
func (v *view) may(name string, pairs ...string) bool {
	verb, params, err := prepared(name, pairs...)
	return err == nil && v.options.API.Allowed(v.caller, verb, params) == nil
}

func (v *view) destinations() (names []string) {
	for _, d := range v.report.Destinations {
		names = append(names, d.Name)
	}
	return names
}

// reported finds a destination in the report; nil if there is none.
func (v *view) reported(name string) *health.Destination {
	i := slices.IndexFunc(v.report.Destinations, func(d health.Destination) bool { return d.Name == name })
	if i < 0 {
		return nil
	}
	return &v.report.Destinations[i]
}

// prepared are a verb and its parameters, from pairs; empty values are left out.
func prepared(name string, pairs ...string) (verbs.Verb, any, error) {
	verb, err := verbs.ByName(name)
	if err != nil {
		return verb, nil, err
	}
	params := verb.New()
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		if err := set(verb, params, pairs[i], pairs[i+1]); err != nil {
			return verb, nil, err
		}
	}
	return verb, params, nil
}

// set gives a parameter its value.
func set(verb verbs.Verb, params any, name, value string) error {
	for _, p := range verb.Params {
		if p.Name == name {
			return p.Set(params, value)
		}
	}
	return &verbs.Fault{Field: name, Text: fmt.Sprintf("is no parameter of %q", verb.Name)}
}

// slug is a verb in an address.
func slug(name string) string { return strings.ReplaceAll(name, " ", "-") }

// named finds the verb of an address.
func named(slug string) (verbs.Verb, error) {
	for _, v := range verbs.All() {
		if strings.ReplaceAll(v.Name, " ", "-") == slug {
			return v, nil
		}
	}
	return verbs.Verb{}, fmt.Errorf("%q is no verb", slug)
}

// ask runs a verb that reads.
func ask[R any](v *view, name string, pairs ...string) (found R, parts sheet.Parts, err error) {
	verb, params, err := prepared(name, pairs...)
	if err != nil {
		return found, nil, err
	}
	result, err := v.options.API.Run(v.ctx, v.caller, verb, params)
	if err != nil {
		return found, nil, err
	}
	found, _ = result.(R)
	return found, verb.Show(params, result), nil
}

// stale reports whether what is shown is old.
func (v *view) stale() bool { return v.report.At.IsZero() || v.age > health.ReadWithin }
