package report

import (
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/mapping"
)

// Table is what the doctor found about a table that exists: a source for the configuration, and what to know of it.
func Table(r *mapping.Report) string {
	var b strings.Builder
	if len(r.Faults) > 0 {
		fmt.Fprintf(&b, "# %s: no mapping could be found that works. This is a beginning:\n", output.Clean(r.Table))
		for _, fault := range r.Faults {
			fmt.Fprintf(&b, "#   %s\n", strings.ReplaceAll(output.Clean(fault), "\n", "\n#   "))
		}
	}
	b.WriteString(sourceYAML(r))
	section := func(title string, all []mapping.Finding) {
		if len(all) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n%s\n", title)
		for _, f := range all {
			fmt.Fprintf(&b, "  %s: %s\n", f.About, output.Clean(f.Text))
			if f.SQL != "" {
				fmt.Fprintf(&b, "      %s\n", strings.ReplaceAll(f.SQL, "\n", "\n      "))
			}
		}
	}
	section("What this table can't give:", r.Limits)
	section("What to do:", r.Advice)
	section("If a row has to be read at once:", []mapping.Finding{r.Notify})
	section("Instead, by the write-ahead log:", []mapping.Finding{r.Log})
	return b.String()
}

// sourceYAML is the section "source" of a destination.
func sourceYAML(r *mapping.Report) string {
	var b strings.Builder
	b.WriteString("source:\n")
	m := &r.Mapping
	field := func(indent int, name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s%s: %q\n", strings.Repeat("  ", indent), name, value)
		}
	}
	if r.Preset != "" {
		field(1, "preset", r.Preset)
		if p, _ := mapping.FindPreset(r.Preset); p.Mapping.Table != m.Table {
			field(1, "table", m.Table)
		}
		if m.Done.How == mapping.DoneDelete {
			b.WriteString("  # This preset DELETES delivered rows.\n")
		}
		return b.String()
	}
	field(1, "strategy", r.Strategy)
	field(1, "table", m.Table)
	field(1, "order", m.Order)
	group := func(name string, pairs ...string) {
		any := false
		for i := 0; i < len(pairs); i += 2 {
			any = any || pairs[i+1] != ""
		}
		if !any {
			return
		}
		fmt.Fprintf(&b, "  %s:\n", name)
		for i := 0; i < len(pairs); i += 2 {
			field(2, pairs[i], pairs[i+1])
		}
	}
	group("columns", "id", m.ID, "message_id", m.MessageID, "topic", m.Topic, "key", m.Key, "aggregate_type", m.AggregateType,
		"aggregate_id", m.AggregateID, "event_type", m.EventType, "payload", m.Payload, "content_type", m.ContentType,
		"headers", m.Headers, "created_at", m.CreatedAt, "deliver_at", m.DeliverAt, "priority", m.Priority)
	group("done", "how", string(m.Done.How), "column", m.Done.Column, "flag", m.Done.Flag, "value", m.Done.Value, "waiting", m.Done.Waiting)
	group("failure", "attempts", m.Failure.Attempts, "error", m.Failure.Error, "last_attempt", m.Failure.LastAttempt,
		"next_attempt", m.Failure.NextAttempt)
	group("claim", "until", m.Claim.Until, "owner", m.Claim.Owner)
	group("offsets", "table", m.Offsets.Table, "topic", m.Offsets.Topic, "partition", m.Offsets.Partition, "transaction",
		m.Offsets.Transaction)
	return b.String()
}
