package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/session"
)

// app is one run of the program.
type app struct {
	*session.Session

	started bool // the command line was understood

	level  slog.LevelVar
	logger *slog.Logger // the relay's
}

// group makes cmd one that only has others below it: alone it prints its help, and what is not below it is
// wrong usage.
func group(cmd *cobra.Command, below ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(below...)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := ""
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			hint = fmt.Sprintf(", did you mean %q?", near[0])
		}
		return fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), hint)
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}
