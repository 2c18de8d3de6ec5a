// Command outbox runs the relay and is the operator's tool for it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/migrate"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/session"
)

func main() {
	a := &app{Session: &session.Session{Streams: output.Streams{Stdout: os.Stdout, Stderr: os.Stderr}, Stdin: os.Stdin, Env: os.LookupEnv}}
	os.Exit(a.main(os.Args[1:]))
}

func (a *app) main(args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	// The first signal asks commands to end in good order, the second one ends the process. Commands say so once ctx
	// has ended, so signals have their usual effect again before it ends.
	ctx, end := context.WithCancel(context.Background())
	defer end()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		<-signals
		signal.Stop(signals)
		end()
	}()
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exit.OK
	}
	if errors.Is(err, exit.ErrPrinted) {
		return exit.Code(err)
	}
	if !a.started {
		err = exit.Usagef("%w", err)
	}
	text := a.Redact(err.Error())
	code := exit.Code(err)
	if code == exit.Usage {
		text += "\nrun the command with --help to see how it is used"
	}
	fmt.Fprintln(a.Stderr, "outbox: "+text)
	return code
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "outbox",
		Short: "Transactional outbox for PostgreSQL: relay and operator's tool",
		Long: `outbox delivers events that services wrote to PostgreSQL, in their own transactions, to Kafka, NATS and
others: every committed one, no rolled-back one, in order per key.

A first run against a database of yours:

  export OUTBOX_DATABASE_URL=postgres://user@localhost/orders
  outbox migrate up             # install the tables
  outbox init                   # write outbox.yaml by the compose file of this folder
  outbox relay                  # deliver
  outbox status                 # is it flowing?

Data goes to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 wrong
usage, 3 wrong configuration, 4 not found, 5 nothing was compared (verify).`,
		Version:       thisBuild().Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		// Errors before this are those of the command line.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			a.started = true
			if a.ServerURL != "" && cmd.Annotations[isVerb] == "" {
				return exit.Usagef("%s works on this machine and its database alone: leave out --server", cmd.CommandPath())
			}
			return nil
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if err.Error() == "unknown flag: --json" {
			err = fmt.Errorf("%w: what a command finds is printed as JSON by -o json", err)
		}
		return err
	})
	a.Flags(root)
	root.AddCommand(a.relayCommand(), a.probeCommand(), group(migrate.Command(a.Session)), migrate.Attach(a.Session), a.verifyCommand(),
		a.archiveCommand(), a.configCommand(), a.fleetCommand(), a.initCommand(), a.versionCommand(), a.manCommand())
	groups := a.groups()
	for _, g := range groups {
		root.AddCommand(g)
	}
	for _, v := range verbs.All() {
		parent := root
		if first, _, below := strings.Cut(v.Name, " "); below {
			parent = groups[first]
		}
		parent.AddCommand(a.commandOf(v))
	}
	return group(root)
}

// groups are the commands that only have others below them: verbs, and what makes sense on this machine alone.
func (a *app) groups() map[string]*cobra.Command {
	return map[string]*cobra.Command{
		"dead": group(&cobra.Command{
			Use:   "dead",
			Short: "Look at, acknowledge, requeue and discard messages that could not be delivered",
			Long: `A message becomes a dead letter when the broker refuses it for good or max_attempts have failed; its key goes
on without it. Under the policy "block" it keeps its key held instead: --blocked shows and acts on those.`,
		}),
		"jobs": group(&cobra.Command{
			Use:   "jobs",
			Short: "Look at, stop and undo bulk verbs",
			Long: `dead requeue, discard, ack and restore, and replay, are jobs: a list of messages that is frozen before you are asked,
carried out in batches that are transactions of their own, in order per key. A job survives the process that began it.`,
		}),
		"tables": group(&cobra.Command{
			Use:   "tables",
			Short: "Look at, acknowledge and requeue dead letters in tables that exist",
			Long: `A destination that reads a table of its own keeps its dead letters as the mapping says: by a status of their rows, or
in a table for them.`,
		}),
		"messages": group(&cobra.Command{
			Use:   "messages",
			Short: "Find messages, and see what became of them",
		}),
		"destinations": group(&cobra.Command{
			Use:   "destinations",
			Short: "List destinations, and drop those that nobody needs any more",
		}),
		"inbox": group(&cobra.Command{
			Use:   "inbox",
			Short: "Look after what consumers record and store in a database",
			Long: `Consumers that use package inbox record what they have applied, and may store messages to be applied later.
Messages of a stored inbox that can't be applied become dead letters of the destination "inbox:CONSUMER".`,
		}, append(a.inboxDead(), a.inboxRetainCommand())...),
	}
}
