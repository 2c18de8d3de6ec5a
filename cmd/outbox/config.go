package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/daemon"
	"github.com/pgoutbox/outbox/cmd/internal/debezium"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

const defaultConfigFile = "outbox.yaml"

// configPath is the file to read, "" for none, and whether somebody named it.
func (a *app) configPath() (path string, named bool) {
	if a.configFile != "" {
		return a.configFile, true
	}
	if path := a.getenv("OUTBOX_CONFIG"); path != "" {
		return path, true
	}
	if _, err := os.Stat(defaultConfigFile); errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	return defaultConfigFile, false
}

// load reads the configuration. Faults are all in the error, which ends the program with exit.Config.
func (a *app) load(in load.Input, sets []string) (*load.Loaded, error) {
	in.Environ, in.Overrides = os.Environ(), map[string]string{}
	for _, set := range sets {
		path, value, ok := strings.Cut(set, "=")
		if !ok {
			return nil, exit.Usagef("--set %q: want PATH=VALUE, such as destinations.0.delivery.batch=1000", set)
		}
		in.Overrides[path] = value
	}
	switch {
	case a.databaseURL != "":
		in.Overrides["database.url"] = a.databaseURL
	case a.getenv("OUTBOX_DATABASE_URL") == "" && a.getenv("OUTBOX_DATABASE_URL_FILE") == "" && a.getenv("DATABASE_URL") != "":
		in.DatabaseURL = a.getenv("DATABASE_URL")
	}
	in.File, _ = a.configPath()
	loaded, err := load.Config(in)
	if err != nil {
		if in.File == "" {
			err = fmt.Errorf("there is no %s here: write one (outbox init does, by the compose file of this folder; "+
				"outbox config schema says what it may contain), or name "+
				"one with --config or OUTBOX_CONFIG\n%w",
				defaultConfigFile, err)
		}
		return nil, exit.With(exit.Config, err)
	}
	for _, w := range loaded.Warnings {
		fmt.Fprintln(a.stderr, "outbox: warning:", a.redact(w))
	}
	return loaded, nil
}

// configuredDatabases are the configuration file's, for commands that need nothing else of it: the one that is named,
// or all.
func (a *app) configuredDatabases() ([]address, error) {
	path, _ := a.configPath()
	if path == "" {
		return nil, errNoDatabase()
	}
	loaded, err := a.load(load.Input{Unopened: true}, nil)
	if err != nil {
		return nil, err
	}
	all := loaded.Config.All()
	var list []address
	for _, one := range all {
		at := address{url: one.Database.URL.Text(), origin: "database.url of " + one.Name + " in " + path, name: one.Name}
		for _, d := range one.Destinations {
			at.destinations = append(at.destinations, d.Name)
		}
		if len(all) == 1 && a.databaseName == "" {
			at.name, at.origin = "", "database.url of "+path
		}
		if one.Name == a.databaseName {
			return []address{at}, nil
		}
		list = append(list, at)
	}
	if a.databaseName != "" {
		return nil, exit.Usagef("%s has no database %q; it has %s", path, a.databaseName, strings.Join(names(list), ", "))
	}
	return list, nil
}

func orText(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func (a *app) configCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "config",
		Short: "Check, show and describe the configuration of the relay",
	}, a.configValidateCommand(), a.configShowCommand(), a.configSchemaCommand(), a.configFromDebeziumCommand())
}

func setFlag(cmd *cobra.Command, sets *[]string) {
	cmd.Flags().StringArrayVar(sets, "set", nil, "set PATH=VALUE over file and environment, such as destinations.0.delivery.batch=1000")
}

func (a *app) configValidateCommand() *cobra.Command {
	var sets []string
	var connects bool
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Report everything that is wrong with the configuration",
		Long: `Reads the configuration as the relay would and reports all faults together, each with its place. Exits with 3 if
something is wrong.

It connects to nothing, unless --connect is given: then it also looks at the database and asks every broker whether it is
reachable, with the addresses, certificates and logins of the configuration. No message is sent. Of a table of your own,
one waiting row is read, marked with each outcome and buried, in a transaction that is rolled back, so rights, triggers
and constraints are tried; for the write-ahead log, a replication connection is opened. Exits with 1 if one of them can't
be used.`,
		Example: `  outbox config validate --config outbox.yaml
  outbox config validate --connect`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := a.load(load.Input{}, sets)
			if err != nil {
				return err
			}
			path, _ := a.configPath()
			some := printed.Many(len(configured(loaded.Config)), "destination", "destinations")
			fmt.Fprintf(a.stdout, "%s is valid: %s\n", orText(path, "the environment"), some)
			if !connects {
				return nil
			}
			d, err := a.daemon(loaded.Config)
			if err != nil {
				return err
			}
			return a.printProbed(d.Probe(cmd.Context()))
		},
	}
	cmd.Flags().BoolVar(&connects, "connect", false, "also try the database, the sources and every broker")
	setFlag(cmd, &sets)
	return cmd
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
			fmt.Fprintf(a.stdout, "%s: ", p.Database)
		}
		fmt.Fprintf(a.stdout, "%s: %s\n", output.Clean(p.What), a.redact(text))
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
			loaded, err := a.load(load.Input{}, sets)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(a.stdout, loaded.Show())
			return err
		},
	}
	setFlag(cmd, &sets)
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
			_, err = a.stdout.Write(text)
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
				fmt.Fprintln(a.stderr, "outbox:", output.Clean(note))
			}
			_, err = a.stdout.Write(converted.YAML)
			return err
		},
	}
}
