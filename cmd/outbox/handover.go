package main

import (
	"fmt"

	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

// printWaiting prints what a handover waits for.
func (a *app) printWaiting(params any, _ output.Format) error {
	params.(*verbs.Handover).Observe = func(waitsFor string) { fmt.Fprintln(a.Stderr, "waiting:", output.Clean(waitsFor)) }
	return nil
}
