package main

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"errors"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/daemon"
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

// load reads the configuration. Faults are all in the error, which exits with exitConfig.
func (a *app) load(in config.Input, sets []string) (*config.Loaded, error) {
	in.Environ, in.Overrides = os.Environ(), map[string]string{}
	for _, set := range sets {
		path, value, ok := strings.Cut(set, "=")
		if !ok {
			return nil, usage("--set %q: want PATH=VALUE, such as destinations.0.delivery.batch=1000", set)
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
	loaded, err := config.Load(in)
	if err != nil {
		if in.File == "" {
			err = fmt.Errorf("there is no %s here: write one (outbox config schema says what it may contain), or name one with --config or OUTBOX_CONFIG\n%w",
				defaultConfigFile, err)
		}
		return nil, coded{err, exitConfig}
	}
	for _, w := range loaded.Warnings {
		fmt.Fprintln(a.stderr, "outbox: warning:", a.redact(w))
	}
	return loaded, nil
}

// configuredDatabase is the configuration file's, for commands that need nothing else of it.
func (a *app) configuredDatabase() (address, error) {
	path, _ := a.configPath()
	if path == "" {
		return address{}, errNoDatabase()
	}
	loaded, err := a.load(config.Input{Unopened: true}, nil)
	if err != nil {
		return address{}, err
	}
	all := loaded.Config.All()
	if len(all) == 1 && a.databaseName == "" {
		return address{all[0].Database.URL.Text(), "database.url of " + path}, nil
	}
	var names []string
	for _, one := range all {
		if one.Name == a.databaseName {
			return address{one.Database.URL.Text(), "database.url of " + one.Name + " in " + path}, nil
		}
		names = append(names, one.Name)
	}
	if a.databaseName == "" {
		return address{}, usage("%s has several databases: name one with --database: %s", path, strings.Join(names, ", "))
	}
	return address{}, usage("%s has no database %q; it has %s", path, a.databaseName, strings.Join(names, ", "))
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
	}, a.configValidateCommand(), a.configShowCommand(), a.configSchemaCommand())
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
reachable, with the addresses, certificates and logins of the configuration. No message is sent. Exits with 1 if one of
them can't be used.`,
		Example: `  outbox config validate --config outbox.yaml
  outbox config validate --connect`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := a.load(config.Input{}, sets)
			if err != nil {
				return err
			}
			path, _ := a.configPath()
			fmt.Fprintf(a.stdout, "%s is valid: %d destinations\n", orText(path, "the environment"), len(destinations(loaded.Config)))
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
	cmd.Flags().BoolVar(&connects, "connect", false, "also ask the database and every broker whether they can be used")
	setFlag(cmd, &sets)
	return cmd
}

func (a *app) printProbed(found []daemon.Probed) error {
	bad := 0
	for _, p := range found {
		text := "ok"
		if p.Err != nil {
			bad++
			text = clean(p.Err.Error())
		}
		fmt.Fprintf(a.stdout, "%s: %s\n", clean(p.What), a.redact(text))
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
			loaded, err := a.load(config.Input{}, sets)
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
			text, err := config.Schema()
			if err != nil {
				return err
			}
			_, err = a.stdout.Write(text)
			return err
		},
	}
}
