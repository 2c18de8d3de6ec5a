package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox/demo/pgfetch"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

// database is the PostgreSQL of the demo: a server of its own, or one that was given.
type database struct {
	url     string // for the relays
	name    string // the database; it overrides the one in url
	pool    *pgxpool.Pool
	version string
	note    string // a remark for people, beside the version

	folder string // of a server of its own
	undo   *undo
}

// openDatabase finds or starts a PostgreSQL and installs the outbox in it; undo removes both. Progress lines go to
// progress.
func openDatabase(ctx context.Context, undo *undo, given string, orders int, progress io.Writer) (d *database, err error) {
	d = &database{undo: undo}
	if given == "" {
		err = d.startOwn(ctx, progress)
	} else {
		err = d.useGiven(ctx, given)
	}
	if err != nil {
		return nil, err
	}
	return d, d.install(ctx, orders)
}

// startOwn starts a server in a temporary folder. Commits wait for the disk there, as they should.
func (d *database) startOwn(ctx context.Context, progress io.Writer) error {
	if err := fetchMissing(ctx, progress); err != nil {
		return err
	}
	server, err := servers.StartPostgres(ctx, servers.PostgresConfig{Fsync: true})
	if err != nil {
		return err
	}
	d.undo.add(func(context.Context) error { return server.Close() })
	d.url, d.name, d.version = server.URL("postgres"), "postgres", server.Version()
	d.folder = filepath.Dir(server.DataDir())
	d.note = "started for this demo on port " + strconv.Itoa(server.Port()) + ", gone afterwards"
	return nil
}

const minMajor = schema.MinServerVersion / 10000

// fetchMissing downloads a PostgreSQL into the cache if the machine has no suitable one.
func fetchMissing(ctx context.Context, progress io.Writer) error {
	_, found, err := servers.FindPostgres("")
	if err != nil && !errors.Is(err, servers.ErrNotFound) {
		return err
	}
	major, _, _ := strings.Cut(found, ".")
	if n, _ := strconv.Atoi(major); n >= minMajor {
		return nil
	}
	cache, err := servers.CacheDir()
	if err != nil {
		return err
	}
	versions := servers.PostgresVersions()
	newest := versions[len(versions)-1]
	fmt.Fprintf(progress, "No PostgreSQL %d or later on this machine: fetching one, once.\n", minMajor)
	err = pgfetch.Fetch(ctx, newest, servers.PostgresDir(cache, newest), progress)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("no PostgreSQL of this machine runs, and none can be fetched: %w\n"+
			"Install one (Debian, Ubuntu: apt install postgresql; Fedora: dnf install postgresql-server; macOS: brew "+
			"install postgresql@18),\n"+
			"or name one that runs: go run ./demo --database-url postgres://user@host/database", err)
	}
	return err
}

// useGiven creates a database on the given server. If the role may not create one, it uses the given database, provided
// that its outbox isn't in use.
func (d *database) useGiven(ctx context.Context, given string) error {
	config, err := pgx.ParseConfig(given)
	if err != nil {
		return fmt.Errorf("--database-url: %w", err)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 10 * time.Second
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("the PostgreSQL of --database-url doesn't let the demo in: %w", err)
	}
	// It stays open as long as the demo runs: it holds the lock of a shared database.
	d.undo.add(conn.Close)
	d.url, d.name = given, config.Database

	var number int
	var standby, mayCreate bool
	err = conn.QueryRow(ctx, `
		SELECT current_setting('server_version'), current_setting('server_version_num')::int, pg_is_in_recovery(),
		       (SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user)`).
		Scan(&d.version, &number, &standby, &mayCreate)
	if err != nil {
		return fmt.Errorf("look at the server of --database-url: %w", err)
	}
	d.version, _, _ = strings.Cut(d.version, " ") // "15.13 (Debian 15.13-0+deb12u1)"
	switch {
	case number < schema.MinServerVersion:
		return fmt.Errorf("the server of --database-url is PostgreSQL %s; the outbox needs %d or later", d.version, minMajor)
	case standby:
		return errors.New("the server of --database-url is a hot standby, which can't be written to: name the primary")
	case mayCreate:
		return d.createDatabase(ctx, conn)
	}
	d.note = fmt.Sprintf("yours; the role may not create databases, so the demo uses %q and leaves it as it was", config.Database)
	return d.borrow(ctx, conn, config.Database)
}

func (d *database) createDatabase(ctx context.Context, conn *pgx.Conn) error {
	name := "outbox_demo_" + randomHex()
	// template0 accepts no connections, which would prevent the copy.
	if _, err := conn.Exec(ctx, `CREATE DATABASE `+name+` TEMPLATE template0`); err != nil {
		return fmt.Errorf("create the database %s on the server of --database-url: %w", name, err)
	}
	d.undoBy(conn, "drop the demo's database, as DROP DATABASE "+name+" does by hand", `DROP DATABASE IF EXISTS `+name+` WITH (FORCE)`)
	d.name = name
	d.note = "yours; the demo has made the database " + name + " in it, and drops it at the end"
	return nil
}

// demoLock prevents two demos from using one database. It also returns whether there is an outbox.
const demoLock = `SELECT pg_try_advisory_lock(hashtextextended('outbox demo', 0)), to_regnamespace('outbox') IS NOT NULL`

// borrow uses a database that isn't the demo's own, if its outbox isn't in use.
func (d *database) borrow(ctx context.Context, conn *pgx.Conn, name string) error {
	var free, installed bool
	err := conn.QueryRow(ctx, demoLock).Scan(&free, &installed)
	switch {
	case err != nil:
		return fmt.Errorf("look for an outbox in the database %q: %w", name, err)
	case !free:
		return fmt.Errorf("another demo runs in the database %q: name another one, or a role that may create databases", name)
	case installed:
		if err := d.emptyOutbox(ctx, conn, name); err != nil {
			return err
		}
		d.undoBy(conn, "empty the outbox again", `TRUNCATE outbox.messages, outbox.cursors, outbox.holds, outbox.dead_letters, outbox.relays`)
	default:
		d.undoBy(conn, "remove the outbox again", `DROP SCHEMA IF EXISTS outbox CASCADE`)
	}
	// A killed demo may have left one; the lock proves that no demo is alive.
	if _, err := conn.Exec(ctx, `DROP SCHEMA IF EXISTS `+ordersSchema+` CASCADE; CREATE SCHEMA `+ordersSchema); err != nil {
		return fmt.Errorf("create a schema for the demo's orders in %q: %w; the role needs CREATE on the database, or CREATEDB", name, err)
	}
	d.undoBy(conn, "remove the demo's orders", `DROP SCHEMA `+ordersSchema+` CASCADE`)
	return nil
}

// undoBy registers a statement that undoes something.
func (d *database) undoBy(conn *pgx.Conn, doing, sql string) {
	d.undo.add(func(ctx context.Context) error {
		_, err := conn.Exec(ctx, sql)
		return wrap(doing, err)
	})
}

// ordersSchema has the table orders if the database isn't the demo's own.
const ordersSchema = "outbox_demo"

// emptyOutbox refuses an outbox that is in use: the demo's relays would deliver its messages to the demo's broker.
func (d *database) emptyOutbox(ctx context.Context, conn *pgx.Conn, name string) error {
	var inUse bool
	err := conn.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM outbox.messages) OR EXISTS (SELECT FROM outbox.cursors)
		    OR EXISTS (SELECT FROM outbox.holds) OR EXISTS (SELECT FROM outbox.dead_letters)`).Scan(&inUse)
	if err != nil {
		return fmt.Errorf("look into the outbox of the database %q: %w", name, err)
	}
	if inUse {
		return fmt.Errorf("the outbox of the database %q is in use: it has messages, or cursors of destinations. The demo would deliver "+
			"those messages to its own broker, so it keeps away. Name an empty database, or a role that may create one (CREATEDB)", name)
	}
	return nil
}

// install makes the tables: the outbox's, by its migrations, and the orders.
func (d *database) install(ctx context.Context, orders int) error {
	config, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		return fmt.Errorf("--database-url: %w", err)
	}
	config.MaxConns = writerCount + 6
	config.ConnConfig.Database = d.name
	config.ConnConfig.RuntimeParams["application_name"] = "outbox demo"
	config.ConnConfig.RuntimeParams["search_path"] = ordersSchema + ",public"
	if d.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	d.undo.add(func(context.Context) error { d.pool.Close(); return nil })
	if _, err := schema.Up(ctx, d.pool, schema.UpConfig{}); err != nil {
		return err
	}
	_, err = d.pool.Exec(ctx, `
		CREATE TABLE orders (
			id         bigint      PRIMARY KEY,
			version    bigint      NOT NULL DEFAULT 0,
			updated_at timestamptz NOT NULL DEFAULT now()
		) WITH (fillfactor = 50);
		INSERT INTO orders (id) SELECT generate_series(0, `+strconv.Itoa(orders-1)+`)`)
	return wrap("create the table orders", err)
}

func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// randomHex returns eight digits for a name.
func randomHex() string { return fmt.Sprintf("%08x", rand.Uint32()) }
