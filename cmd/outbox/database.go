package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox/schema"
)

// address is a database's URL and where it was found.
type address struct {
	url    string
	origin string
}

// database finds the database by precedence: flag, environment, configuration file.
func (a *app) database() (address, error) {
	if a.databaseURL != "" {
		return address{a.databaseURL, "--database-url"}, nil
	}
	for _, name := range []string{"OUTBOX_DATABASE_URL", "DATABASE_URL"} {
		if url := a.getenv(name); url != "" {
			return address{url, name}, nil
		}
	}
	return a.configuredDatabase()
}

func errNoDatabase() error {
	return usage("no database is named: set OUTBOX_DATABASE_URL or DATABASE_URL to a URL such as postgres://user@localhost/orders, " +
		"give --database-url, or write database.url to outbox.yaml")
}

// parse reads the address. Its error repeats nothing that may be a piece of a password.
func (a *app) parse(at address) (*pgx.ConnConfig, error) {
	a.secrets = append(a.secrets, at.url)
	_, err := url.Parse(at.url)
	if err != nil && strings.Contains(at.url, "://") {
		return nil, coded{fmt.Errorf("%s is not a database URL such as postgres://user:password@host:5432/database: "+
			"special characters in a user name or password must be percent-encoded, such as %%40 for @ and %%2F for /", at.origin), exitConfig}
	}
	cfg, err := pgx.ParseConfig(at.url)
	if err != nil {
		var parse *pgconn.ParseConfigError
		if errors.As(err, &parse) && errors.Unwrap(parse) != nil {
			err = errors.Unwrap(parse)
		}
		return nil, coded{fmt.Errorf("%s can't be used as a database URL such as postgres://user:password@host:5432/database: %w", at.origin, err), exitConfig}
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
	cfg, err := a.parse(at)
	if err != nil {
		return nil, err
	}
	return dial(ctx, cfg, at.origin)
}

func dial(ctx context.Context, cfg *pgx.ConnConfig, origin string) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, explainConnect(err, cfg, origin)
	}
	return conn, nil
}

// explainConnect turns the usual failures to connect into what to do about them.
func explainConnect(err error, cfg *pgx.ConnConfig, origin string) error {
	where := fmt.Sprintf("%s:%d", cfg.Host, cfg.Port)
	if strings.HasPrefix(cfg.Host, "/") {
		where = cfg.Host
	}
	var pgErr *pgconn.PgError
	var dns *net.DNSError
	switch {
	case errors.As(err, &pgErr) && (pgErr.Code == "28P01" || pgErr.Code == "28000"):
		return fmt.Errorf("PostgreSQL at %s refuses user %q: %s: check user and password in %s, and the server's pg_hba.conf",
			where, cfg.User, pgErr.Message, origin)
	case errors.As(err, &pgErr) && pgErr.Code == "3D000":
		return fmt.Errorf("PostgreSQL at %s has no database %q: create it, or correct %s", where, cfg.Database, origin)
	case errors.As(err, &pgErr) && pgErr.Code == "53300":
		return fmt.Errorf("PostgreSQL at %s has no free connection: %s: raise max_connections or close some", where, pgErr.Message)
	case errors.As(err, &pgErr):
		return fmt.Errorf("connect to PostgreSQL at %s: %w", where, pgErr)
	case errors.As(err, &dns):
		return fmt.Errorf("the host %q of %s is not known: %w", cfg.Host, origin, dns)
	case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("no PostgreSQL listens at %s: start it, or correct %s", where, origin)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("PostgreSQL at %s does not answer: check the address in %s and firewalls on the way: %w", where, origin, context.DeadlineExceeded)
	}
	return fmt.Errorf("connect to PostgreSQL at %s, from %s: %w", where, origin, err)
}

// operate connects for an operator's command and makes sure that the schema is there.
func (a *app) operate(ctx context.Context) (*pgx.Conn, error) {
	conn, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	state, err := schema.Status(ctx, conn)
	switch {
	case err != nil:
	case state.Version == 0:
		err = fmt.Errorf("%w in database %q: run: outbox migrate up", schema.ErrMissing, state.Database)
	case state.Version < state.Latest:
		err = fmt.Errorf("%w: database %q has version %d, and this program needs %d: run: outbox migrate up",
			schema.ErrOutdated, state.Database, state.Version, state.Latest)
	case state.Version > state.Latest:
		err = fmt.Errorf("%w: database %q has version %d, and this program knows versions up to %d: use a newer program",
			schema.ErrTooNew, state.Database, state.Version, state.Latest)
	default:
		return conn, nil
	}
	disconnect(conn)
	return nil, err
}

func disconnect(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // nothing is left that it could lose
}

var passwords = regexp.MustCompile(`(://[^:/@\s"]*):[^@\s"]*@|((?i:password|passwd|pwd)\s*=\s*)('[^']*'|[^\s"'}]+)`)

// redact removes passwords from a text that is to be printed. Nothing should have got there; this is the
// second line of defence.
func (a *app) redact(text string) string {
	for _, secret := range a.secrets {
		text = strings.ReplaceAll(text, secret, "xxxxx")
	}
	return passwords.ReplaceAllStringFunc(text, func(found string) string {
		m := passwords.FindStringSubmatch(found)
		if m[1] != "" {
			return m[1] + ":xxxxx@"
		}
		return m[2] + "xxxxx"
	})
}
