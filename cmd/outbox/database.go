package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/schema"
)

// address is a database's URL and where it was found.
type address struct {
	url    string
	origin string

	name         string   // of the configuration, where it has several databases
	destinations []string // of the configuration
}

// database is the one that a command works on.
func (a *app) database() (address, error) {
	all, err := a.addresses()
	if err != nil {
		return address{}, err
	}
	if len(all) > 1 {
		path, _ := a.configPath()
		return address{}, exit.Usagef("%s has several databases: name one with --database: %s", path, strings.Join(names(all), ", "))
	}
	return all[0], nil
}

func names(all []address) (list []string) {
	for _, at := range all {
		list = append(list, at.name)
	}
	return list
}

// addresses finds all databases by precedence: flag, environment, configuration file. Only the last may have several.
func (a *app) addresses() ([]address, error) {
	if a.databaseName != "" {
		if a.databaseURL != "" {
			return nil, exit.Usagef("--database and --database-url exclude each other")
		}
		return a.configuredDatabases()
	}
	if a.databaseURL != "" {
		return []address{{url: a.databaseURL, origin: "--database-url"}}, nil
	}
	for _, name := range []string{"OUTBOX_DATABASE_URL", "OUTBOX_DATABASE_URL_FILE", "DATABASE_URL"} {
		value := a.getenv(name)
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
			if all, err := a.configuredDatabases(); err == nil && len(all) > 1 {
				return all, nil
			}
		}
		return []address{{url: value, origin: name}}, nil
	}
	return a.configuredDatabases()
}

func errNoDatabase() error {
	return exit.Usagef("no database is named: set OUTBOX_DATABASE_URL or DATABASE_URL to a URL such as postgres://user@localhost/orders, " +
		"give --database-url, or write database.url to outbox.yaml")
}

// parse reads the address. Its error repeats nothing that may be a piece of a password.
func (a *app) parse(at address) (*pgx.ConnConfig, error) {
	a.secrets.add(at.url)
	if complaint := connect.Complaint(at.url); complaint != "" {
		return nil, exit.With(exit.Config, fmt.Errorf("%s can't be used as the address of a database: %s", at.origin, complaint))
	}
	cfg, err := pgx.ParseConfig(at.url)
	if err != nil {
		return nil, exit.With(exit.Config, fmt.Errorf("%s can't be used as the address of a database", at.origin))
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 10 * time.Second
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "outbox"
	}
	cfg.RuntimeParams["client_encoding"] = "UTF8" // otherwise it is the database's
	return cfg, nil
}

// connect opens a connection; the caller closes it. Its errors say what to do.
func (a *app) connect(ctx context.Context) (*pgx.Conn, error) {
	at, err := a.database()
	if err != nil {
		return nil, err
	}
	return a.open(ctx, at)
}

func (a *app) open(ctx context.Context, at address) (*pgx.Conn, error) {
	cfg, err := a.parse(at)
	if err != nil {
		return nil, err
	}
	return connect.Open(ctx, cfg, at.origin)
}

// on makes what a command does on a database what cobra runs: open connects, and the connection is closed in the end.
func (a *app) on(open func(context.Context) (*pgx.Conn, error),
	do func(context.Context, *pgx.Conn, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		conn, err := open(cmd.Context())
		if err != nil {
			return err
		}
		defer connect.Close(conn)
		return do(cmd.Context(), conn, args)
	}
}

// operate connects for an operator's command and makes sure that the schema is there.
func (a *app) operate(ctx context.Context) (*pgx.Conn, error) {
	at, err := a.database()
	if err != nil {
		return nil, err
	}
	return a.operateOn(ctx, at)
}

func (a *app) operateOn(ctx context.Context, at address) (*pgx.Conn, error) {
	conn, err := a.open(ctx, at)
	if err != nil {
		return nil, err
	}
	up := health.OnDatabase("outbox migrate up", at.name)
	state, err := schema.Status(ctx, conn)
	switch {
	case err != nil:
	case state.Version == 0:
		err = fmt.Errorf("%w in database %q: run: %s", schema.ErrMissing, state.Database, up)
	case state.Version < state.Latest:
		err = fmt.Errorf("%w: database %q has version %d, and this program needs %d: run: %s",
			schema.ErrOutdated, state.Database, state.Version, state.Latest, up)
	case state.TooNew():
		err = fmt.Errorf("%w: database %q has version %d, and this program knows versions up to %d: use a newer program",
			schema.ErrTooNew, state.Database, state.Version, state.Latest)
	default:
		return conn, nil
	}
	connect.Close(conn)
	return nil, err
}

var passwords = regexp.MustCompile(`(://[^:/@\s"]*):[^@\s"]*@|((?i:password|passwd|pwd)\s*=\s*)('[^']*'|[^\s"'}]+)`)

// secrets are texts that are never to be printed, such as addresses as they were given. They are safe for concurrent
// use.
type secrets struct {
	mu    sync.Mutex
	texts []string
}

func (s *secrets) add(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.texts, text) {
		s.texts = append(s.texts, text)
	}
}

func (s *secrets) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.texts)
}

// redact removes passwords from a text that is to be printed. Nothing should have got there; this is the
// second line of defence.
func (a *app) redact(text string) string {
	for _, secret := range a.secrets.all() {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "xxxxx")
		}
	}
	return passwords.ReplaceAllStringFunc(text, func(found string) string {
		m := passwords.FindStringSubmatch(found)
		if m[1] != "" {
			return m[1] + ":xxxxx@"
		}
		return m[2] + "xxxxx"
	})
}
