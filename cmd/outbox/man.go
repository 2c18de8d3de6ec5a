package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man FOLDER",
		Short: "Write the pages of the manual, one for each command",
		Example: `  outbox man ~/.local/share/man/man1
  man outbox-dead-requeue`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			return writePages(cmd.Root(), args[0])
		},
	}
}

func writePages(cmd *cobra.Command, folder string) error {
	if err := os.WriteFile(filepath.Join(folder, pageName(cmd)+".1"), []byte(page(cmd)), 0o644); err != nil {
		return err
	}
	for _, below := range documented(cmd) {
		if err := writePages(below, folder); err != nil {
			return err
		}
	}
	return nil
}

// documented are the commands below one, without those that the library of commands adds.
func documented(cmd *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(cmd.Commands()), func(below *cobra.Command) bool {
		return !below.IsAvailableCommand() || below.Name() == "help" || below.Name() == "completion"
	})
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// page is the help of a command in man(7). It has no date, so that the same program makes the same bytes.
func page(cmd *cobra.Command) string {
	var b strings.Builder
	name := pageName(cmd)
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"outbox %s\" \"pgoutbox\"\n", strings.ToUpper(roff(name)), roff(thisBuild().Version))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(cmd.UseLine()))
	b.WriteString(".SH DESCRIPTION\n" + prose(cmp.Or(cmd.Long, cmd.Short)))
	flags := func(title string, set *pflag.FlagSet) {
		if set.HasAvailableFlags() {
			b.WriteString(".SH " + title + "\n")
		}
		set.VisitAll(func(f *pflag.Flag) {
			if f.Hidden {
				return
			}
			kind, usage := pflag.UnquoteUsage(f)
			long := "--" + f.Name
			if f.Shorthand != "" {
				long = "-" + f.Shorthand + ", " + long
			}
			if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "[]" && f.DefValue != "0s" {
				usage += " (default " + f.DefValue + ")"
			}
			fmt.Fprintf(&b, ".TP\n%s\n%s\n", strings.TrimSpace("\\fB"+roff(long)+"\\fR "+roff(kind)), roff(usage))
		})
	}
	flags("OPTIONS", cmd.LocalNonPersistentFlags())
	flags("OPTIONS OF ALL COMMANDS", cmd.Root().PersistentFlags())
	if cmd.Example != "" {
		b.WriteString(".SH EXAMPLES\n" + prose(cmd.Example))
	}
	var others []string
	if cmd.HasParent() {
		others = append(others, pageName(cmd.Parent()))
	}
	for _, below := range documented(cmd) {
		others = append(others, pageName(below))
	}
	for i, other := range others {
		others[i] = "\\fB" + roff(other) + "\\fR(1)"
	}
	if len(others) > 0 {
		b.WriteString(".SH SEE ALSO\n" + strings.Join(others, ",\n") + "\n")
	}
	return b.String()
}

// prose is a text of paragraphs. Lines that are indented stand as they are.
func prose(text string) string {
	var b strings.Builder
	literal := false
	for _, line := range strings.Split(strings.Trim(text, "\n"), "\n") {
		if indented := strings.HasPrefix(line, " "); line != "" && indented != literal {
			literal = indented
			if indented {
				b.WriteString(paragraph(b.String()) + ".nf\n")
			} else {
				b.WriteString(".fi\n.PP\n")
			}
		}
		switch {
		case line == "" && !literal:
			b.WriteString(paragraph(b.String()))
		default:
			b.WriteString(roff(line) + "\n")
		}
	}
	if literal {
		b.WriteString(".fi\n")
	}
	return b.String()
}

// paragraph begins one, unless one has just begun.
func paragraph(before string) string {
	if before == "" || strings.HasSuffix(before, ".PP\n") {
		return ""
	}
	return ".PP\n"
}

// roff writes a line so that none of it is a command.
func roff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ").Replace(line)
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		line = `\&` + line
	}
	return line
}
