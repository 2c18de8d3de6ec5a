package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/daemon"
	"github.com/pgoutbox/outbox/cmd/internal/debezium"
	"github.com/pgoutbox/outbox/cmd/internal/discover"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/session"
	"github.com/pgoutbox/outbox/internal/printed"
)

func (a *app) configCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "config",
		Short: "Check, show and describe the configuration of the relay",
	}, a.configValidateCommand(), a.configShowCommand(), a.configSchemaCommand(), a.configFromDebeziumCommand())
}

func (a *app) configValidateCommand() *cobra.Command {
	var sets []string
	var connects bool
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Report everything that is wrong with the configuration",
		Long: `Reads the configuration as the relay would and reports all faults together, each with its place. Exits with 3 if
something is wrong.

It connects to nothing, unless --connect is given: then it also looks for databases where discover says, and at each
database, and asks every broker whether it is
reachable, with the addresses, certificates and logins of the configuration. No message is sent. Of a table of your own,
one waiting row is read, marked with each outcome and buried, in a transaction that is rolled back, so rights, triggers
and constraints are tried; for the write-ahead log, a replication connection is opened. Exits with 1 if one of them can't
be used.`,
		Example: `  outbox config validate --config outbox.yaml
  outbox config validate --connect`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := a.Load(load.Input{}, sets)
			if err != nil {
				return err
			}
			path := a.ConfigPath()
			some := printed.Many(len(configured(loaded.Config)), "destination", "destinations")
			if n := len(loaded.Config.Discover); n > 0 {
				some += ", " + printed.Many(n, "source of databases", "sources of databases")
			}
			fmt.Fprintf(a.Stdout, "%s is valid: %s\n", cmp.Or(path, "the environment"), some)
			if !connects {
				return nil
			}
			cfg, sources := a.Discovered(cmd.Context(), loaded)
			d, err := a.daemon(cfg, nil)
			if err != nil {
				return err
			}
			return a.printProbed(append(probedSources(sources), d.Probe(cmd.Context())...))
		},
	}
	cmd.Flags().BoolVar(&connects, "connect", false, "also try the database, the sources and every broker")
	session.SetFlag(cmd, &sets)
	return cmd
}

// probedSources are the sources of databases and what they have that is at fault, as parts that were tried.
func probedSources(sources []discover.Status) (found []daemon.Probed) {
	for _, s := range sources {
		p := daemon.Probed{What: "source " + s.Source, Untried: "it has " + printed.Many(len(s.Databases), "database", "databases")}
		if s.Error != "" {
			p.Err = errors.New(s.Error)
		}
		found = append(found, p)
		for _, l := range s.LeftOut {
			found = append(found, daemon.Probed{Database: l.Name, What: "source " + s.Source, Err: errors.New(l.Reason)})
		}
	}
	return found
}

func (a *app) printProbed(found []daemon.Probed) error {
	bad := 0
	for _, p := range found {
		text := "ok"
		if p.Untried != "" {
			text += ", " + output.Clean(p.Untried)
		}
		if p.Err != nil {
			bad++
			text = output.Clean(p.Err.Error())
		}
		if p.Database != "" {
			fmt.Fprintf(a.Stdout, "%s: ", p.Database)
		}
		fmt.Fprintf(a.Stdout, "%s: %s\n", output.Clean(p.What), a.Redact(text))
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d can't be used", bad, len(found))
	}
	return nil
}

func (a *app) configShowCommand() *cobra.Command {
	var sets []string
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the configuration in effect, and where each value comes from",
		Long:  `Prints the configuration after file, environment and flags, as YAML. Secrets are masked.`,
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			loaded, err := a.Load(load.Input{}, sets)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(a.Stdout, loaded.Show())
			return err
		},
	}
	session.SetFlag(cmd, &sets)
	return cmd
}

func (a *app) configSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the configuration file",
		Example: `  outbox config schema > outbox.schema.json
  # then in outbox.yaml, for completion in editors:
  # yaml-language-server: $schema=outbox.schema.json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			text, err := load.Schema()
			if err != nil {
				return err
			}
			_, err = a.Stdout.Write(text)
			return err
		},
	}
}

func (a *app) configFromDebeziumCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "from-debezium FILE",
		Short: "Turn a configuration of Debezium into one of the relay",
		Long: `Reads the application.properties of Debezium Server, or a connector of Kafka Connect as JSON, and prints the
configuration of a relay that reads the same table by the same slot and sends the same records. What has no counterpart,
or what a person has to look at, is listed on standard error and in comments at the top. Passwords are not copied.

The connector must have the outbox event router: the relay delivers the messages of an outbox, and streams no other
tables. - reads standard input. docs/coming-from/debezium.md has the way over, and back.`,
		Example: `  outbox config from-debezium application.properties > outbox.yaml
  curl -s localhost:8083/connectors/orders | outbox config from-debezium - > outbox.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var text []byte
			var err error
			if args[0] == "-" {
				text, err = io.ReadAll(cmd.InOrStdin())
			} else {
				text, err = os.ReadFile(args[0])
			}
			if err != nil {
				return err
			}
			converted, err := debezium.Convert(text)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			for _, note := range converted.Notes {
				fmt.Fprintln(a.Stderr, "outbox:", output.Clean(note))
			}
			_, err = a.Stdout.Write(converted.YAML)
			return err
		},
	}
}
