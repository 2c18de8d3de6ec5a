package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

func listHolds(a *app, p *verbs.Holds, list []find.HeldLane) error {
	if len(list) == 0 {
		fmt.Fprintln(a.stderr, "none")
		return nil
	}
	t := output.NewTable(a.stdout, "DESTINATION", "KEY", "MESSAGES", "FIRST", "TOPIC", "ATTEMPTS", "SINCE", "NEXT TRY", "ERROR")
	now := time.Now()
	for _, h := range list {
		next := "blocked"
		if !h.Blocked {
			next = "in " + printed.Span(h.Due.Sub(now))
		}
		t.Row(h.Destination, output.Short(h.Lane, 40), h.Messages, h.MessageID, h.Topic, h.Attempts, output.Ago(now, h.Since)+" ago",
			next, output.Short(h.Error, output.ErrorWidth))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(list) == p.Limit {
		last := list[len(list)-1]
		fmt.Fprintf(a.stderr, "there may be more: add --after %s\n", output.Clean(last.Destination+"/"+last.Lane))
	}
	return nil
}

func listAudit(a *app, p *verbs.Audit, list []admin.AuditEntry) error {
	if len(list) == 0 {
		fmt.Fprintln(a.stderr, "none")
		return nil
	}
	t := output.NewTable(a.stdout, "ID", "AT", "BY", "VERB", "DESTINATION", "REASON", "DETAIL")
	for _, e := range list {
		t.Row(e.ID, e.At.Local().Format(time.DateTime), e.Actor, e.Verb, e.Destination, output.Short(e.Reason, 60), output.Short(string(e.Detail), 80))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(list) == p.Limit {
		fmt.Fprintf(a.stderr, "there may be more: add --before %d\n", list[len(list)-1].ID)
	}
	return nil
}

func listRelays(a *app, _ *struct{}, list []health.Relay) error {
	if len(list) == 0 {
		fmt.Fprintln(a.stderr, "none: no relay has ever run on this database")
		return nil
	}
	return writeRelays(a.stdout, &health.Report{At: time.Now(), Relays: list})
}

func groupLetters(a *app, _ *verbs.Filter, g find.DeadGroups) error {
	if len(g.Groups) == 0 {
		fmt.Fprintln(a.stderr, "none")
		return nil
	}
	t := output.NewTable(a.stdout, "GROUP", "MESSAGES", "NEW", "AGAIN", "DESTINATION", "TOPIC", "CAUSE", "FIRST", "LAST", "ERROR OF THE LAST")
	now := time.Now()
	for _, d := range g.Groups {
		t.Row(d.Fingerprint, printed.Number(d.Messages), printed.Number(d.New), printed.Number(d.Again), d.Destination, d.Topic,
			d.Reason, output.Ago(now, d.First)+" ago", output.Ago(now, d.Last)+" ago", output.Short(d.Error, output.ErrorWidth))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if g.Partial {
		fmt.Fprintf(a.stderr, "%s dead letters were looked at, and there are more: select fewer by flags\n", printed.Number(g.Looked))
	}
	return nil
}

func listRetention(a *app, _ *struct{}, list []health.RetainedSegment) error {
	t := output.NewTable(a.stdout, "SEGMENT", "SIZE", "MESSAGES", "OLDEST", "NEEDED BY", "EMPTIED")
	for _, s := range list {
		oldest := "–"
		if !s.Oldest.IsZero() {
			oldest = s.Oldest.Local().Format(time.DateTime)
		}
		t.Row(s.Name, printed.Bytes(s.Bytes), printed.Number(s.Messages), oldest, strings.Join(s.NeededBy, ", "), s.Emptied())
	}
	return t.Flush()
}
