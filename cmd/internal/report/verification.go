package report

import (
	"fmt"
	"io"
	"time"

	"github.com/pgoutbox/outbox/admin/verify"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

// Verification prints what a comparison of the outbox with a consumer found.
func Verification(w io.Writer, v *verify.Verification) error {
	reach := "the outbox is empty"
	if v.Oldest != nil {
		reach = "the outbox reaches back to " + v.Oldest.Local().Format(time.DateTime)
	}
	fmt.Fprintf(w, "%s committed, %s applied; %s\n", printed.Number(v.Committed), printed.Number(v.Applied), reach)
	if v.Committed == 0 && v.OK() {
		return nil
	}
	if v.OK() {
		_, err := fmt.Fprintln(w, "nothing is missing, doubled or inverted")
		return err
	}
	t := output.NewTable(w, "FAULT", "MESSAGE ID", "POSITION", "TOPIC", "KEY", "NUMBER", "WRITTEN", "DETAIL")
	row := func(fault string, m verify.Message, detail string) {
		t.Row(fault, m.MessageID, m.Position, m.Topic, printed.Cut(m.Key, 40), m.Sequence,
			m.CreatedAt.Local().Format(time.DateTime), detail)
	}
	for _, m := range v.Missing.List {
		row("missing", m, "was not applied")
	}
	for _, m := range v.Doubled.List {
		row("doubled", m, fmt.Sprintf("was applied %d times", m.Times))
	}
	for _, m := range v.Inverted.List {
		row("inverted", m.Message, fmt.Sprintf("was applied before %s at %d", m.Before.MessageID, m.Before.Position))
	}
	for _, g := range v.Gaps.List {
		t.Row("gap", "", "", g.Topic, printed.Cut(g.Key, 40), fmt.Sprintf("%d-%d", g.First, g.Last), "",
			"the consumer has not seen these numbers")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	named := len(v.Missing.List) + len(v.Doubled.List) + len(v.Inverted.List) + len(v.Gaps.List)
	if all := v.Missing.N + v.Doubled.N + v.Inverted.N + v.Gaps.N; all > int64(named) {
		fmt.Fprintf(w, "and %s more: raise --limit\n", printed.Number(all-int64(named)))
	}
	return nil
}
