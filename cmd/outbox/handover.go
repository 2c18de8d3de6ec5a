package main

import (
	"fmt"

	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

func handedOver() view {
	v := asks(shows(func(a *app, _ *verbs.Handover, done verbs.HandedOver) error {
		_, err := fmt.Fprintf(a.stdout, "%s is read by %s\n", output.Clean(done.Destination), done.To)
		return err
	}), nil, func(p *verbs.Handover, _ verbs.HandedOver) (string, bool) {
		if p.To == destinations.ByLog {
			return "", true // nothing is lost by it
		}
		return "Stop reading the write-ahead log for " + output.Clean(p.Destination) + ", and drop its slot?", true
	})
	v.prepare = func(a *app, params any, _ output.Format) error {
		params.(*verbs.Handover).Observe = func(waitsFor string) { fmt.Fprintln(a.stderr, "waiting:", output.Clean(waitsFor)) }
		return nil
	}
	return v
}
