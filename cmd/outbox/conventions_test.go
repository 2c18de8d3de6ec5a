package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/session"
)

// leaves are the commands that do something, by what is typed for them.
func leaves() map[string]*cobra.Command {
	found := map[string]*cobra.Command{}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, below := range cmd.Commands() {
			walk(below)
		}
		if !cmd.HasSubCommands() {
			found[strings.TrimPrefix(cmd.CommandPath(), "outbox ")] = cmd
		}
	}
	walk((&app{Session: &session.Session{}}).root())
	return found
}

func TestWhatACommandFindsIsPrintedAsJSONByOneFlag(t *testing.T) {
	t.Parallel()
	// These print a document of their own kind (SQL, YAML, a schema), or nothing that a program reads.
	without := []string{"attach", "config from-debezium", "config schema", "config show", "config validate", "man", "migrate from",
		"migrate grants", "migrate sources", "migrate sql", "probe", "relay"}
	for name, cmd := range leaves() {
		if cmd.Flag("json") != nil {
			t.Errorf("%s has a second flag for JSON", name)
		}
		out := cmd.Flag("output")
		switch {
		case out == nil && !slices.Contains(without, name):
			t.Errorf("%s has no -o", name)
		case out != nil && slices.Contains(without, name):
			t.Errorf("%s has -o, and is in the list of those without", name)
		case out != nil && (out.Shorthand != "o" || !strings.Contains(out.Usage, "json")):
			t.Errorf("%s has %s: %s", name, out.Name, out.Usage)
		}
	}
	command(t, t.TempDir(), nil, "status", "--json").want(exitUsage, "unknown flag: --json", "-o json")
}

func TestSinceAndUntilAreATimeOrHowLongAgoEverywhere(t *testing.T) {
	t.Parallel()
	given := map[string][]string{"archive show": {"dir"}, "verify": {"--consumer", "c"}, "replay": {"--destination", "d", "--all"},
		"dead ack": {"--all"}, "dead requeue": {"--all"}, "dead discard": {"--all"}, "dead restore": {"--all"}, "dead show": {"1"},
		"inbox dead": {"payments"}, "inbox requeue": {"payments", "--all"},
		"inbox discard": {"payments", "--all"}}
	n := 0
	for name, cmd := range leaves() {
		for _, flag := range []string{"since", "until"} {
			if cmd.Flag(flag) == nil {
				continue
			}
			n++
			if !strings.Contains(cmd.Flag(flag).Usage, verbs.TimeForm) {
				t.Errorf("%s --%s: %s", name, flag, cmd.Flag(flag).Usage)
			}
			args := append(strings.Fields(name), given[name]...)
			run := func(value string) result {
				// Nothing listens there: what was understood fails to connect.
				return command(t, t.TempDir(), []string{"OUTBOX_DATABASE_URL=postgres://u@127.0.0.1:1/x"}, append(args, "--"+flag, value)...)
			}
			run("yesterday").want(exitUsage, "yesterday", verbs.TimeForm)
			for _, value := range []string{"1h30m", "2026-05-01T12:00:00Z", "2026-05-01T14:00:00+02:00"} {
				if r := run(value); r.code == exitUsage {
					t.Errorf("%s --%s %s: %s", name, flag, value, r.stderr)
				}
			}
		}
		for _, other := range []string{"newer-than", "older-than", "after-time", "from", "before-time"} {
			if cmd.Flag(other) != nil && name != "migrate sql" {
				t.Errorf("%s has --%s beside --since and --until", name, other)
			}
		}
	}
	if n < 8 {
		t.Errorf("%d flags are times", n)
	}
}

func TestADestinationIsNamedByItsFlagOrAlone(t *testing.T) {
	t.Parallel()
	for _, v := range verbs.All() {
		i := slices.IndexFunc(v.Params, func(p verbs.Param) bool { return p.Name == "destination" })
		if i < 0 {
			continue
		}
		p := v.Params[i]
		if !p.Flag {
			t.Errorf("%s has no --destination", v.Name)
		}
		_, flagged, ok := verbs.Parse("outbox " + v.Name + " --destination kafka")
		if !ok || p.Value(flagged) != "kafka" {
			t.Errorf("%s --destination kafka is read as %+v", v.Name, flagged)
		}
		if slices.ContainsFunc(v.Params, func(p verbs.Param) bool { return p.Arg != "" && p.Name != "destination" }) {
			continue // ids or a topic stand there
		}
		_, alone, ok := verbs.Parse("outbox " + v.Name + " kafka")
		if !ok || p.Value(alone) != "kafka" {
			t.Errorf("%s kafka is read as %+v", v.Name, alone)
		}
	}
	for _, line := range []string{"pause", "rebase", "tables ack --yes", "handover --to snapshot"} {
		command(t, t.TempDir(), nil, strings.Fields(line)...).want(exitUsage, "--destination is missing")
	}
	for _, line := range []string{"pause a --destination b", "dead ls a --destination b", "controls a --destination b"} {
		command(t, t.TempDir(), nil, strings.Fields(line)...).want(exitUsage, "two destinations are named")
	}
	// It is the same command: it fails where it connects.
	for _, line := range []string{"pause a --yes", "pause --destination a --yes", "pause a --destination a --yes", "dead ls a", "audit a",
		"holds --destination a", "rebase a --yes", "rebase --destination a --yes"} {
		command(t, t.TempDir(), []string{"OUTBOX_DATABASE_URL=postgres://u@127.0.0.1:1/x"}, strings.Fields(line)...).want(exitError, "127.0.0.1:1")
	}
	command(t, t.TempDir(), []string{"OUTBOX_DATABASE_URL=postgres://u@127.0.0.1:1/x"}, "check", "a").want(2, "127.0.0.1:1")
}
