package main

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man FOLDER",
		Short: "Write the pages of the manual, one for each command",
		Example: `  outbox man ~/.local/share/man/man1
  man outbox-dead-requeue`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			root.RemoveCommand(slices.DeleteFunc(slices.Clone(root.Commands()), func(c *cobra.Command) bool {
				return c.Name() != "completion" // cobra's own
			})...)
			root.DisableAutoGenTag = true
			literal(root)
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			b := thisBuild()
			return doc.GenManTree(root, &doc.GenManHeader{Date: b.time, Source: "outbox " + b.Version, Manual: "pgoutbox"}, args[0])
		},
	}
}

// literal makes lines that are indented stand as they are: the library reads the text as Markdown.
func literal(cmd *cobra.Command) {
	cmd.Long = strings.ReplaceAll(cmd.Long, "\n  ", "\n    ")
	for _, below := range cmd.Commands() {
		literal(below)
	}
}
