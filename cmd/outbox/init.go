package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/project"
	"github.com/pgoutbox/outbox/internal/printed"
)

func (a *app) initCommand() *cobra.Command {
	var force, dryRun bool
	var out output.Format
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write a migration and a configuration for the project in this folder",
		Long: `Looks at the go.mod, the compose file and the migrations of the folder, and writes

  a migration with the tables, in the form of goose, dbmate or golang-migrate if there are files of theirs, else
  outbox.sql (outbox migrate up installs the same tables without a file), and
  outbox.yaml, with the database and the broker of the compose file.

It prints ten lines of Go that write an event. Files that are there stay as they are, unless --force is given.`,
		Example: `  outbox init --dry-run
  outbox init && outbox config validate --connect`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			found, err := project.Look(".", time.Now())
			if err != nil {
				return err
			}
			if !dryRun {
				if err := writeFiles(found.Files, force); err != nil {
					return err
				}
			}
			if out == output.AsJSON {
				for i := range found.Files {
					if !dryRun {
						found.Files[i].Text = "" // it is in the file
					}
				}
				return output.JSON(a.Stdout, found)
			}
			a.printProject(found, dryRun)
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "write over files that are there")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "write nothing, and print what would be written")
	output.FormatFlag(cmd, &out, output.AsTable, output.AsJSON)
	return cmd
}

// writeFiles writes all files or none.
func writeFiles(files []project.File, force bool) error {
	for _, f := range files {
		if _, err := os.Lstat(f.Path); !force && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is there already, so nothing was written: move it away, or write over it with --force", f.Path)
		}
	}
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(f.Path, ".yaml") {
			mode = 0o600 // it may have a password
		}
		if err := os.WriteFile(f.Path, []byte(f.Text), mode); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printProject(f project.Found, dryRun bool) {
	say := func(format string, args ...any) { fmt.Fprintf(a.Stdout, format+"\n", args...) }
	found := func(what, value, otherwise string) {
		if value == "" {
			value = otherwise
		}
		say("%-12s%s", what, output.Clean(value))
	}
	found("module", f.Module, "no go.mod here")
	found("compose", f.Compose, "no compose file here")
	found("database", f.Database, "none found: the configuration has the server's default address")
	found("broker", f.Broker, "none found: messages are printed")
	found("migrations", f.Tool, "no files of goose, dbmate or golang-migrate: outbox.sql")
	say("")
	for _, file := range f.Files {
		if !dryRun {
			say("wrote %s", output.Clean(file.Path))
			continue
		}
		say("--- %s", output.Clean(file.Path))
		text := file.Text
		if strings.HasSuffix(file.Path, ".sql") && strings.Count(text, "\n") > 20 {
			text = fmt.Sprintf("%d lines, as outbox migrate sql prints them\n", strings.Count(text, "\n"))
		}
		for line := range strings.Lines(text) {
			fmt.Fprintln(a.Stdout, printed.Text(strings.TrimSuffix(line, "\n")))
		}
	}
	if f.Code != "" {
		say("\nAn event beside its row (go get github.com/pgoutbox/outbox):\n\n%s", indented(f.Code))
	} else {
		say("\nAn event beside its row:\n\n    SELECT outbox.publish('orders', '{\"id\": 1}', key => 'order-1')\n")
	}
	install := "apply the migration"
	if f.Tool == "" {
		install = "outbox migrate up"
	}
	say("Next: %s, then: outbox config validate --connect, then: outbox relay", install)
}

func indented(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n    ") + "\n"
}
