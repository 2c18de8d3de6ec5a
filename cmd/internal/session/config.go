package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

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

// configuredDatabases are the configuration file's, for commands that need nothing else of it: the one that is named,
// or all.
func (s *Session) configuredDatabases() ([]Address, error) {
	path := s.ConfigPath()
	if path == "" {
		return nil, errNoDatabase()
	}
	loaded, err := s.Load(load.Input{Unopened: true}, nil)
	if err != nil {
		return nil, err
	}
	all := loaded.Config.All()
	var list []Address
	for _, one := range all {
		at := Address{URL: one.Database.URL.Text(), Origin: "database.url of " + one.Name + " in " + path, Name: one.Name}
		for _, d := range one.Destinations {
			at.Destinations = append(at.Destinations, d.Name)
		}
		if len(all) == 1 && s.databaseName == "" {
			at.Name, at.Origin = "", "database.url of "+path
		}
		if one.Name == s.databaseName {
			return []Address{at}, nil
		}
		list = append(list, at)
	}
	if s.databaseName != "" {
		return nil, exit.Usagef("%s has no database %q; it has %s", path, s.databaseName, strings.Join(names(list), ", "))
	}
	return list, nil
}
