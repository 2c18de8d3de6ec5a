package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/daemon"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/mapping"
)

// doctorCommand is the verb, with the brokers of this machine's configuration, and without a table the doctor of
// tables.
func (a *app) doctorCommand(v verbs.Verb) *cobra.Command {
	var table string
	var strict bool
	cmd := a.verb(v, view{formats: []output.Format{output.AsTable, output.AsJSON}, write: func(*app, any, any) error { return nil }})
	lookAtTable := a.on(a.connect, func(ctx context.Context, conn *pgx.Conn, _ []string) error {
		report, err := mapping.Doctor(ctx, conn, table)
		if err != nil {
			return err
		}
		if output.Format(cmd.Flag("output").Value.String()) == output.AsJSON {
			return output.JSON(a.stdout, report)
		}
		_, err = fmt.Fprint(a.stdout, doctorText(report))
		return err
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case table != "" && a.serverURL != "":
			return exit.Usagef("outbox doctor --table works on this machine and its database alone: leave out --server")
		case table != "":
			return lookAtTable(cmd, args)
		}
		return a.doctor(cmd.Context(), v, output.Format(cmd.Flag("output").Value.String()), strict)
	}
	cmd.Flags().StringVar(&table, "table", "", "look at this table, with its schema unless that is in the search path, "+
		"and propose how to deliver from it")
	cmd.Flags().BoolVar(&strict, "exit-code", false, "exit with 1 if there is a fault")
	return cmd
}

// examined is what the doctor found about one of several databases.
type examined struct {
	Name string `json:"name"`
	*health.Examination
}

// doctor examines the database, or all there are, with their brokers.
func (a *app) doctor(ctx context.Context, v verbs.Verb, out output.Format, strict bool) error {
	places, err := a.places("")
	if err != nil {
		return err
	}
	defer leave(places)
	answers := a.ask(ctx, v, v.New(), places)
	if len(answers) == 1 && answers[0].err != nil {
		return answers[0].err
	}
	probed, err := a.probeBrokers(ctx)
	if err != nil {
		return err
	}
	var all []examined
	faults := 0
	for _, from := range answers {
		e, asked := from.result.(*health.Examination)
		if !asked {
			e = &health.Examination{Well: []string{}}
			e.Symptoms = append(e.Symptoms, health.Symptom{About: "database", Weight: health.WeightFault, Text: a.redact(from.err.Error())})
		}
		for _, p := range probed {
			if (p.Database == "" || p.Database == from.name) && (asked || p.What != "database") {
				a.addProbed(e, p)
			}
		}
		e.OnDatabase(from.name)
		e.Sort()
		for _, s := range e.Symptoms {
			if s.Weight == health.WeightFault {
				faults++
			}
		}
		all = append(all, examined{from.name, e})
	}
	if err := a.writeExaminations(out, all); err != nil {
		return err
	}
	if strict && faults > 0 {
		return fmt.Errorf("%d faults", faults)
	}
	return unasked(answers)
}

// probeBrokers asks the databases and brokers of the configuration, if there is one on this machine, as a relay would.
func (a *app) probeBrokers(ctx context.Context) ([]daemon.Probed, error) {
	if path, _ := a.configPath(); path == "" || a.server() != "" {
		return nil, nil
	}
	loaded, err := a.load(load.Input{}, nil)
	if err != nil {
		return nil, err
	}
	d, err := a.daemon(loaded.Config)
	if err != nil {
		return nil, err
	}
	return d.Probe(ctx), nil
}

func (a *app) addProbed(e *health.Examination, p daemon.Probed) {
	source := strings.HasPrefix(p.What, "source of ")
	if p.Err == nil {
		what := p.What
		if source && p.Untried != "" {
			what += " (" + p.Untried + ")"
		}
		e.Well = append(e.Well, what)
		return
	}
	if source { // its error says what to run
		e.Symptoms = append(e.Symptoms, health.Symptom{About: p.What, Weight: health.WeightFault, Text: a.redact(p.Err.Error())})
		return
	}
	s := health.Symptom{About: p.What, Weight: health.WeightFault, Text: a.redact(p.Err.Error()),
		Advice: "correct the configuration, or what it leads to, and look again:", Repair: "outbox config validate --connect"}
	if p.What == "database" {
		s.About, s.Advice, s.Repair = "relay", "", ""
	}
	e.Symptoms = append(e.Symptoms, s)
}

func (a *app) writeExaminations(out output.Format, all []examined) error {
	if out == output.AsJSON && len(all) == 1 {
		return output.JSON(a.stdout, all[0].Examination)
	}
	if out == output.AsJSON {
		return output.JSON(a.stdout, all)
	}
	for i, e := range all {
		if len(all) > 1 {
			fmt.Fprintf(a.stdout, "%s%s: ", strings.Repeat("\n", min(i, 1)), e.Name)
		}
		if err := writeExamination(a.stdout, e.Examination); err != nil {
			return err
		}
	}
	return nil
}

func writeExamination(w io.Writer, e *health.Examination) error {
	if e.Server == "" {
		fmt.Fprintln(w, "the database could not be asked")
	} else {
		fmt.Fprintf(w, "database %s, PostgreSQL %s, schema %d\n", output.Clean(e.Database), e.Server, e.Schema)
	}
	for _, s := range e.Symptoms {
		fmt.Fprintf(w, "\n%s: %s: %s\n", strings.ToUpper(string(s.Weight)), output.Clean(s.About), output.Clean(s.Text))
		if do := (health.Finding{Advice: s.Advice, Next: s.Repair}).Remedy(); do != "" {
			fmt.Fprintf(w, "  repair: %s\n", output.Clean(do))
		}
	}
	_, err := fmt.Fprintf(w, "\nin order: %s\n", output.Clean(strings.Join(e.Well, ", ")))
	return err
}

// sentCanary fails if the message has not arrived everywhere.
func sentCanary() view {
	return asks(shows(func(a *app, _ *verbs.Canary, c health.Canary) error {
		for _, name := range slices.Sorted(maps.Keys(c.Settled)) {
			fmt.Fprintf(a.stdout, "%s settled it after %v\n", output.Clean(name), c.Settled[name])
		}
		for _, name := range slices.Sorted(maps.Keys(c.Failed)) {
			fmt.Fprintf(a.stdout, "%s could not deliver it: %s\n", output.Clean(name), output.Clean(c.Failed[name]))
		}
		for _, name := range c.Waiting {
			fmt.Fprintf(a.stdout, "%s has not come to it\n", output.Clean(name))
		}
		switch {
		case c.MessageID == "":
			fmt.Fprintf(a.stdout, "a message could be written to topic %s\n", output.Clean(c.Topic))
			return nil
		case len(c.Failed)+len(c.Waiting) > 0:
			return errors.New("the message has not arrived everywhere: look at outbox status")
		case len(c.Settled) == 0:
			return errors.New("no destination is there to settle it: start a relay")
		}
		return nil
	}), nil, func(p *verbs.Canary, _ health.Canary) (string, bool) {
		return fmt.Sprintf("Send a message to topic %q, whose consumers get it?", p.Topic), true
	})
}

func doctorText(r *mapping.Report) string {
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
