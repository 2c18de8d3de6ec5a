package discover

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
)

// cluster finds the databases of a server that have the outbox schema. It asks each of them by a short connection: a
// new one at once, the others rarely.
type cluster struct {
	cfg    config.Cluster
	takes  func(name string) bool
	open   Open
	origin string
	checks map[string]checked // by the database's name
}

// checked is what a database said.
type checked struct {
	has   bool
	at    time.Time
	fault string // why it doesn't say
}

// askWithin bounds what one database is asked.
const askWithin = 5 * time.Second

// A database whose removal was interrupted has a connection limit of -2. One that this role may not connect to is not
// gone.
const databasesSQL = `
	SELECT datname, has_database_privilege(oid, 'CONNECT')
	FROM pg_database
	WHERE datallowconn AND NOT datistemplate AND datconnlimit <> -2
	ORDER BY datname`

// The catalogue is open to every role, where the schema need not be.
const schemaSQL = `
	SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'outbox' AND c.relname = 'messages')`

func (c *cluster) look(ctx context.Context, known map[string]bool) ([]item, error) {
	names, forbidden, err := c.names(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var ask []string
	for _, name := range names {
		if last, asked := c.checks[name]; !asked || now.Sub(last.at) >= c.cfg.Recheck {
			ask = append(ask, name)
		}
	}
	failed := c.askAll(ctx, ask)
	there := make(map[string]checked, len(names))
	var items []item
	for _, name := range names {
		last, asked := c.checks[name]
		if asked {
			there[name] = last
		}
		it := item{name: name, found: load.Found{URL: withDatabase(c.cfg.URL.Text(), name)}}
		if !c.cfg.ViewerURL.Empty() {
			it.found.ViewerURL = withDatabase(c.cfg.ViewerURL.Text(), name)
		}
		err := failed[name]
		switch {
		case err != nil && (known[name] || !asked || last.has):
			it.fault = unasked + err.Error()
		case last.fault != "":
			it.fault = unasked + last.fault
		case !last.has:
			continue
		}
		items = append(items, it)
	}
	for _, name := range forbidden {
		if known[name] {
			items = append(items, item{name: name, fault: "this role has no right to connect to it any more: grant CONNECT, or " +
				"leave it out by except"})
		}
	}
	c.checks = there
	return items, nil
}

func (c *cluster) names(ctx context.Context) (names, forbidden []string, err error) {
	conn, err := c.open(ctx, c.cfg.URL.Text(), c.origin)
	if err != nil {
		return nil, nil, err
	}
	defer connect.Close(conn)
	rows, err := conn.Query(ctx, databasesSQL)
	if err != nil {
		return nil, nil, fmt.Errorf("list the databases: %w", err)
	}
	var name string
	var may bool
	_, err = pgx.ForEachRow(rows, []any{&name, &may}, func() error {
		switch {
		case !c.takes(name):
		case may:
			names = append(names, name)
		default:
			forbidden = append(forbidden, name)
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list the databases: %w", err)
	}
	return names, forbidden, nil
}

// askAll asks databases for their schema, and returns why some could not be asked.
func (c *cluster) askAll(ctx context.Context, names []string) map[string]error {
	var mu sync.Mutex
	failed := make(map[string]error)
	next := make(chan string)
	var asking sync.WaitGroup
	for range min(c.cfg.Connections, len(names)) {
		asking.Go(func() {
			for name := range next {
				has, err := c.ask(ctx, name)
				mu.Lock()
				switch {
				case err == nil:
					c.checks[name] = checked{has: has, at: time.Now()}
				case refused(err):
					c.checks[name] = checked{at: time.Now(), fault: err.Error()}
				default:
					failed[name] = err
				}
				mu.Unlock()
			}
		})
	}
	for _, name := range names {
		next <- name
	}
	close(next)
	asking.Wait()
	return failed
}

func (c *cluster) ask(ctx context.Context, name string) (has bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	conn, err := c.open(ctx, withDatabase(c.cfg.URL.Text(), name), c.origin)
	if err == nil {
		defer connect.Close(conn)
		err = conn.QueryRow(ctx, schemaSQL).Scan(&has)
	}
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Code == "3D000" {
		return false, nil // it was dropped, or has another name, since the list was read
	}
	return has, err
}

const unasked = "it can't be asked whether it has the schema: "

// refused reports whether it is the server that says no, and not the network: it is asked again rarely.
func refused(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && (strings.HasPrefix(server.Code, "28") || server.Code == "42501")
}

// withDatabase is an address with another database in it.
func withDatabase(address, name string) string {
	scheme, rest, isURL := strings.Cut(address, "://")
	if !isURL || strings.ContainsAny(scheme, "= ") {
		return address + " dbname=" + quoted(name) // the last one counts
	}
	authority, query := rest, ""
	if i := strings.IndexByte(rest, '?'); i >= 0 {
		authority, query = rest[:i], rest[i:]
	}
	if i := strings.IndexByte(authority, '/'); i >= 0 {
		authority = authority[:i]
	}
	if values, err := url.ParseQuery(strings.TrimPrefix(query, "?")); err == nil && (values.Has("dbname") || values.Has("database")) {
		values.Del("dbname")
		values.Del("database")
		query = "?" + values.Encode()
	}
	return scheme + "://" + authority + "/" + url.PathEscape(name) + query
}

// quoted is a value as keyword/value strings have it.
func quoted(value string) string {
	return "'" + escaped(value) + "'"
}

func escaped(value string) string { return strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) }
