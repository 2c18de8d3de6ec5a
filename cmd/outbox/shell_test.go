package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/session"
)

func TestCompletionKnowsVerbsAndWhatIsInTheDatabase(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.letters()
	d.publish("shipping", 1)
	d.publish("$(reboot)", 1)
	d.outbox("pause", "kafka", "--topic", "orders", "--yes", "--actor", "anna").want(exitOK)
	ids := []string{"00000000-0000-7000-8000-000000000001", "00000000-0000-7000-8000-000000000002", "00000000-0000-7000-8000-000000000003"}
	for line, want := range map[string][]string{
		"dest":                      {"destinations"},
		"destinations ":             {"drop", "ls", "move"},
		"pause ":                    {"kafka"},
		"pause x":                   nil,
		"pause kafka ":              nil,
		"pause kafka --topic ":      {"orders", "shipping"},
		"canary s":                  {"shipping"},
		"dead ls --destination k":   {"kafka"},
		"dead ls --cause ":          {"exhausted", "invalid", "refused"},
		"dead ls -o ":               {"json", "jsonl", "table"},
		"dead show ":                ids,
		"dead show " + ids[0] + " ": ids,
		"handover --to r":           {"replication"},
		"holds --key ":              {"held"},
		"audit --by ":               {"anna"},
		"audit --verb ":             {"pause"},
	} {
		words := strings.Split(line, " ")
		r := d.outbox(append([]string{"__complete"}, words...)...).want(exitOK)
		var got []string
		for _, proposed := range strings.Split(r.stdout, "\n") {
			if name, _, _ := strings.Cut(proposed, "\t"); name != "" && !strings.HasPrefix(name, ":") {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("after %q the shell is told %q, want %q", line, got, want)
		}
	}
	// Without a database it proposes nothing, and no files in place of destinations.
	none := []string{"OUTBOX_DATABASE_URL=postgres://127.0.0.1:1/none"}
	if r := command(t, d.folder, none, "__complete", "pause", "").want(exitOK); r.stdout != ":4\n" {
		t.Errorf("without a database the shell is told %q", r.stdout)
	}
}

func TestTheManualHasAPageForEachCommand(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "man1")
	command(t, t.TempDir(), nil, "man", folder).want(exitOK)
	commands := 0
	var look func(*cobra.Command)
	look = func(cmd *cobra.Command) {
		commands++
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		page, err := os.ReadFile(filepath.Join(folder, name+".1"))
		if err != nil {
			t.Error(err)
		}
		for _, want := range []string{".SH SYNOPSIS", "--database-url", "pgoutbox"} {
			if !strings.Contains(strings.ReplaceAll(string(page), `\-`, "-"), want) {
				t.Errorf("%s has no %q", name, want)
			}
		}
		for _, below := range cmd.Commands() {
			look(below)
		}
	}
	look((&app{Session: &session.Session{}}).root())
	if files, err := os.ReadDir(folder); err != nil || len(files) != commands || commands < 40 {
		t.Errorf("%d pages of %d commands, %v", len(files), commands, err)
	}
}
