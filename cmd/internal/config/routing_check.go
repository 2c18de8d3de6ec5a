package config

import (
	"strings"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	records "github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/route"
)

// checkRouting checks what the packages route and format have to say about a destination.
func (d *Destination) checkRouting(r *findings.Report, path string) {
	selection := d.Selection()
	selection.Topics = nil // checked already
	for _, fault := range settings.List(selection.Check()) {
		r.Fault(r.OriginOf(path+".filter"), path+".filter", "%v", fault)
	}
	f := d.Format
	r.Check(f.CloudEvents == nil || f.Debezium == nil, path+".format",
		"cloudevents and debezium are given; keep one, or make a destination of each")
	if f.Debezium != nil {
		r.Check(!f.Debezium.Compact || d.Broker.Redis != nil, path+".format.debezium.compact",
			"true, but the broker is not Redis; leave it out")
		d.checkPlacements(r, path)
	}
}

// checkPlacements checks, by a message that has every header that can be known here, that a header which the Debezium
// layout places is there when the header rules have been applied, and that no column becomes one which the layout
// writes itself.
func (d *Destination) checkPlacements(r *findings.Report, path string) {
	rules, err := route.Table{Headers: d.Table().Headers}.Parse()
	if err != nil {
		return // reported already
	}
	var m mapping.Mapping
	if d.Source != nil {
		_, m = d.Source.Resolve()
	}
	probe := outbox.Message{Topic: "t"}
	add := func(name string) {
		if _, there := probe.Header(name); !there {
			probe.Headers = append(probe.Headers, outbox.Header{Name: name, Value: "v"})
		}
	}
	for _, h := range m.HeaderColumns {
		add(h.Name)
	}
	placed, written := map[string]bool{}, map[string]bool{"id": true}
	for _, p := range d.Format.Debezium.Place {
		if name, of := strings.CutPrefix(p.Field, "header."); of {
			placed[name] = true
			if d.Source == nil || m.Headers != "" {
				add(name)
			}
		}
		written[records.Placement(p).Name()] = written[records.Placement(p).Name()] || !p.Envelope
	}
	_ = rules.Apply(&probe) // a template that gives a topic to none is reported elsewhere
	at := path + ".format.debezium.place"
	for i, p := range d.Format.Debezium.Place {
		name, of := strings.CutPrefix(p.Field, "header.")
		_, there := probe.Header(name)
		r.Check(!of || there, fields.Element(at, i), "no message has a header %q when it is placed: a rule in route.headers "+
			"takes it away before, or no column becomes it (source.columns.header_columns: [%s=COLUMN])", name, name)
	}
	for _, h := range m.HeaderColumns {
		_, sent := probe.Header(h.Name)
		r.Check(!sent || placed[h.Name] || !written[h.Name], at,
			"the layout writes a header %q itself, which the column %q becomes too, so every message with a value "+
				"would be refused: place header.%s, or rename it in route.headers", h.Name, h.Column, h.Name)
	}
}
