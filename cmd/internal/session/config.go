package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
)

const defaultConfigFile = "outbox.yaml"

// ConfigPath is the file to read, "" for none.
func (s *Session) ConfigPath() string {
	if s.configFile != "" {
		return s.configFile
	}
	if path := s.Getenv("OUTBOX_CONFIG"); path != "" {
		return path
	}
	if _, err := os.Stat(defaultConfigFile); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return defaultConfigFile
}

// Load reads the configuration. Faults are all in the error, which ends the program with exit.Config.
func (s *Session) Load(in load.Input, sets []string) (*load.Loaded, error) {
	in.Environ, in.Overrides = os.Environ(), map[string]string{}
	for _, set := range sets {
		path, value, ok := strings.Cut(set, "=")
		if !ok {
			return nil, exit.Usagef("--set %q: want PATH=VALUE, such as destinations.0.delivery.batch=1000", set)
		}
		in.Overrides[path] = value
	}
	switch {
	case s.DatabaseURL != "":
		in.Overrides["database.url"] = s.DatabaseURL
	case s.Getenv("OUTBOX_DATABASE_URL") == "" && s.Getenv("OUTBOX_DATABASE_URL_FILE") == "" && s.Getenv("DATABASE_URL") != "":
		in.DatabaseURL = s.Getenv("DATABASE_URL")
	}
	in.File = s.ConfigPath()
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
		fmt.Fprintln(s.Stderr, "outbox: warning:", s.Redact(w))
	}
	return loaded, nil
}

// SetFlag adds --set, whose values are for Load.
func SetFlag(cmd *cobra.Command, sets *[]string) {
	cmd.Flags().StringArrayVar(sets, "set", nil, "set PATH=VALUE over file and environment, such as destinations.0.delivery.batch=1000")
}
