package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/mapping"
)

func (a *app) doctorCommand() *cobra.Command {
	var table string
	out := asTable
	cmd := &cobra.Command{
		Use:   "doctor --table TABLE",
		Short: "Look at an outbox table that exists, and propose how to deliver from it",
		Long: `Reads what the catalogue knows of a table and proposes the preset or the mapping of its columns, as YAML to
paste into outbox.yaml, and the strategy. It says what the table can't give (order, parallelism, freedom from
stalls), which index is missing, and warns of writers whose lock doesn't conflict with itself.

It changes nothing and reads no row. The role needs no right on the table but to see it.`,
		Example: `  outbox doctor --table outbox_events
  outbox doctor --table p2p.transaction_outbox -o json`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if table == "" {
				return usage("no table is named: give --table, with its schema unless that is in the search path")
			}
			return nil
		},
		RunE: a.on(a.connect, func(ctx context.Context, conn *pgx.Conn, _ []string) error {
			report, err := mapping.Doctor(ctx, conn, table)
			if err != nil {
				return err
			}
			if out == asJSON {
				return printJSON(a.stdout, report)
			}
			_, err = fmt.Fprint(a.stdout, doctorText(report))
			return err
		}),
	}
	cmd.Flags().StringVar(&table, "table", "", "the table to look at")
	formatFlag(cmd, &out, asTable, asJSON)
	return cmd
}

func doctorText(r *mapping.Report) string {
	var b strings.Builder
	if len(r.Faults) > 0 {
		fmt.Fprintf(&b, "# %s: no mapping could be found that works. This is a beginning:\n", clean(r.Table))
		for _, fault := range r.Faults {
			fmt.Fprintf(&b, "#   %s\n", strings.ReplaceAll(clean(fault), "\n", "\n#   "))
		}
	}
	b.WriteString(sourceYAML(r))
	section := func(title string, all []mapping.Finding) {
		if len(all) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n%s\n", title)
		for _, f := range all {
			fmt.Fprintf(&b, "  %s: %s\n", f.About, clean(f.Text))
			if f.SQL != "" {
				fmt.Fprintf(&b, "      %s\n", strings.ReplaceAll(f.SQL, "\n", "\n      "))
			}
		}
	}
	section("What this table can't give:", r.Limits)
	section("What to do:", r.Advice)
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
		return b.String()
	}
	field(1, "strategy", r.Strategy)
	field(1, "table", m.Table)
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
	group("failure", "attempts", m.Failure.Attempts, "error", m.Failure.Error, "last_attempt", m.Failure.LastAttempt, "next_attempt", m.Failure.NextAttempt)
	group("claim", "until", m.Claim.Until, "owner", m.Claim.Owner)
	group("offsets", "table", m.Offsets.Table, "topic", m.Offsets.Topic, "partition", m.Offsets.Partition, "transaction", m.Offsets.Transaction)
	return b.String()
}
