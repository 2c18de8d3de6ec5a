package session

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/discover"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
)

// Address is a database's URL and where it was found.
type Address struct {
	URL    string
	Origin string

	Name         string   // of the configuration, where it has several databases
	Destinations []string // of the configuration

	Err error // why it has no URL: what was discovered is at fault, or the source is; Name then is that of either
}

// Database is the one that a command works on.
func (s *Session) Database(ctx context.Context) (Address, error) {
	all, err := s.addresses(ctx)
	if err != nil {
		return Address{}, err
	}
	if len(all) > 1 {
		path := s.ConfigPath()
		return Address{}, exit.Usagef("%s has several databases: name one with --database: %s", path, strings.Join(names(all), ", "))
	}
	return all[0], nil
}

func names(all []Address) (list []string) {
	for _, at := range all {
		list = append(list, at.Name)
	}
	return list
}

// addresses finds all databases by precedence: flag, environment, configuration file. Only the last may have several.
func (s *Session) addresses(ctx context.Context) ([]Address, error) {
	if s.databaseName != "" {
		if s.DatabaseURL != "" {
			return nil, exit.Usagef("--database and --database-url exclude each other")
		}
		return s.configuredDatabases(ctx)
	}
	if s.DatabaseURL != "" {
		return []Address{{URL: s.DatabaseURL, Origin: "--database-url"}}, nil
	}
	for _, name := range []string{"OUTBOX_DATABASE_URL", "OUTBOX_DATABASE_URL_FILE", "DATABASE_URL"} {
		value := s.Getenv(name)
		if value == "" {
			continue
		}
		if strings.HasSuffix(name, "_FILE") {
			text, err := os.ReadFile(value)
			if err != nil {
				return nil, exit.With(exit.Config, fmt.Errorf("%s: %w", name, err))
			}
			value = strings.TrimRight(string(text), "\r\n")
		}
		if name == "DATABASE_URL" { // the relay ignores it, too, beside a list
			if all, err := s.configuredDatabases(ctx); err == nil && len(all) > 1 {
				return all, nil
			}
		}
		return []Address{{URL: value, Origin: name}}, nil
	}
	return s.configuredDatabases(ctx)
}

func errNoDatabase() error {
	return exit.Usagef("no database is named: set OUTBOX_DATABASE_URL or DATABASE_URL to a URL such as postgres://user@localhost/orders, " +
		"give --database-url, or write database.url to outbox.yaml")
}

// configuredDatabases are the configuration file's, for commands that need nothing else of it: the one that is named,
// or all.
func (s *Session) configuredDatabases(ctx context.Context) ([]Address, error) {
	path := s.ConfigPath()
	if path == "" {
		return nil, errNoDatabase()
	}
	loaded, err := s.Load(load.Input{Unopened: true}, nil)
	if err != nil {
		return nil, err
	}
	cfg, sources := loaded.Config, []discover.Status(nil)
	if !slices.ContainsFunc(cfg.Databases, func(e config.Entry) bool { return e.Name == s.databaseName && e.Name != "" }) {
		cfg, sources = s.Discovered(ctx, loaded)
	}
	all := cfg.All()
	list := unusable(sources)
	for _, one := range all {
		at := Address{URL: one.Database.URL.Text(), Origin: "database.url of " + one.Name + " in " + path, Name: one.Name}
		for _, d := range one.Destinations {
			at.Destinations = append(at.Destinations, d.Name)
		}
		if len(all) == 1 && len(sources) == 0 && s.databaseName == "" {
			at.Name, at.Origin = "", "database.url of "+path
		}
		if one.Name == s.databaseName {
			return []Address{at}, nil
		}
		list = append(list, at)
	}
	if s.databaseName != "" {
		if err := discover.Failed(sources); err != nil {
			return nil, err
		}
		return nil, exit.Usagef("%s has no database %q; it has %s", path, s.databaseName, strings.Join(names(list), ", "))
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no database is found where discover in %s looks: outbox fleet plan shows the sources", path)
	}
	return list, nil
}
