package main

import (
	"fmt"

	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/admin/verbs"
)

func handedOver() view {
	v := asks(shows(func(a *app, _ *verbs.Handover, done verbs.HandedOver) error {
		_, err := fmt.Fprintf(a.stdout, "%s is read by %s\n", clean(done.Destination), done.To)
		return err
	}), nil, func(p *verbs.Handover, _ verbs.HandedOver) (string, bool) {
		if p.To == destinations.ByLog {
			return "", true // nothing is lost by it
		}
		return "Stop reading the write-ahead log for " + clean(p.Destination) + ", and drop its slot?", true
	})
	v.prepare = func(a *app, params any, _ format) error {
		params.(*verbs.Handover).Observe = func(waitsFor string) { fmt.Fprintln(a.stderr, "waiting:", clean(waitsFor)) }
		return nil
	}
	return v
}
