package servers

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/child"
)

// PostgresConfig says what kind of cluster is wanted. The zero value is one for tests.
type PostgresConfig struct {
	// Major is the wanted major version, 14 to 18. Default: the newest that is installed.
	Major string

	// Fsync makes commits wait for the disk. By default they don't, which is faster, survives SIGKILL of the server,
	// and would not survive a power failure.
	Fsync bool

	// Settings are added to postgresql.conf. They win over those that every cluster gets: wal_level=logical,
	// max_connections=200, max_prepared_transactions=100, max_replication_slots=100, max_wal_senders=100.
	Settings map[string]string

	// Storage is a folder in which the cluster makes its own, such as a small file system that can be filled up. root's
	// PostgreSQL runs as another user, who has to be able to enter it. Default: the folder for temporary files.
	Storage string

	// OwnIdentity runs initdb instead of copying a cluster that was made by it once. It takes half a second more and
	// gives the cluster a system identifier of its own; otherwise clusters of one version may have the same.
	OwnIdentity bool
}

// Postgres is a cluster with the superuser postgres, who needs no password, on 127.0.0.1.
type Postgres struct {
	Server
	version string
	bin     string
	storage string
	base    *url.URL // of a server from the environment

	primary *Postgres // of a standby
	slot    string
}

// StartPostgres starts a cluster and returns when it answers. The caller must Close it. The error wraps [ErrNotFound]
// when no such version is installed.
func StartPostgres(ctx context.Context, config PostgresConfig) (*Postgres, error) {
	if err := canStart(); err != nil {
		return nil, err
	}
	bin, version, err := FindPostgres(config.Major)
	if err != nil {
		return nil, err
	}
	p, err := newPostgres(bin, version, config.Storage)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL %s: %w", version, err)
	}
	if config.OwnIdentity {
		err = p.initdb(ctx, p.DataDir())
	} else {
		err = p.copyTemplate(ctx)
	}
	if err == nil {
		err = p.startFirst(ctx, 1, func(ports []int) error {
			settings := config.settings()
			settings["port"] = strconv.Itoa(ports[0])
			return p.appendSettings(settings)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, errors.Join(err, p.Close()))
	}
	return p, nil
}

// newPostgres makes the folder of a cluster, without data, in storage or, if that is "", where temporary files are.
func newPostgres(bin, version, storage string) (*Postgres, error) {
	uid := postgresUID()
	if uid != 0 {
		if err := enterable(bin); err != nil {
			return nil, err
		}
	}
	folder, err := newFolderIn(storage, "postgres", uid)
	if err != nil {
		return nil, err
	}
	p := &Postgres{version: version, bin: bin, storage: storage}
	p.name = "PostgreSQL " + version
	p.folder = folder
	p.stopSig = syscall.SIGINT // fast shutdown
	p.command = func() child.Command {
		return child.Command{
			Path:    executable(bin, "postgres"),
			Args:    []string{"-D", p.DataDir()},
			Env:     []string{"LC_ALL=C"},
			Dir:     folder,
			UID:     uid,
			OnDeath: syscall.SIGQUIT, // immediate shutdown, of the children too
		}
	}
	p.ready = func(ctx context.Context) error {
		return p.query(ctx, "postgres", "SELECT 1", nil)
	}
	return p, nil
}

// postgresUID returns the user that PostgreSQL must run as, 0 for this process's.
func postgresUID() int {
	if os.Geteuid() == 0 {
		return nobody
	}
	return 0
}

// Version returns the server's version: 18.6.
func (p *Postgres) Version() string { return p.version }

// Major returns the server's major version: 18.
func (p *Postgres) Major() int {
	major, _ := strconv.Atoi(majorOf(p.version))
	return major
}

// DataDir returns the data folder; "" for a server from the environment.
func (p *Postgres) DataDir() string {
	if p.given != "" {
		return ""
	}
	return filepath.Join(p.folder, "data")
}

// URL returns the address of a database for the superuser.
func (p *Postgres) URL(database string) string {
	if p.base != nil {
		u := *p.base
		u.Path = "/" + database
		return u.String()
	}
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: p.addr, Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// Crash shuts the server down at once, by SIGQUIT: no checkpoint, clients are told, and Restart recovers.
func (p *Postgres) Crash() error {
	if err := p.lock("crash"); err != nil {
		return err
	}
	defer p.mu.Unlock()
	if err := p.stop(syscall.SIGQUIT); err != nil {
		return fmt.Errorf("crash %s: %w", p.name, err)
	}
	return nil
}

// Close ends the server and removes its data; a standby's replication slot too, if its primary answers. A server from
// the environment is left alone. A second Close does nothing.
func (p *Postgres) Close() error {
	return p.close(func() error {
		var err error
		if p.process != nil && p.process.Running() {
			err = p.stop(syscall.SIGQUIT)
		}
		p.dropSlot()
		p.freeSharedMemory()
		return err
	})
}

// freeSharedMemory removes what a killed server has left in shared memory, which no process's end frees: as the next
// start of the same cluster would.
func (p *Postgres) freeSharedMemory() {
	if _, err := os.Stat(filepath.Join(p.DataDir(), "postmaster.pid")); err != nil {
		return // it went in good order
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	// It fails for a standby or a broken cluster, but has done its work by then.
	_ = p.run(ctx, "postgres", "--single", "-D", p.DataDir(), "postgres")
}

// initdb creates a cluster in a folder that doesn't exist.
func (p *Postgres) initdb(ctx context.Context, data string) error {
	return p.run(ctx, "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
}

// run runs one of PostgreSQL's programs to its end.
func (p *Postgres) run(ctx context.Context, program string, args ...string) error {
	return child.Run(ctx, child.Command{
		Path: executable(p.bin, program),
		Args: args,
		Env:  []string{"LC_ALL=C"}, // a LANG that the machine doesn't have makes initdb fail
		Dir:  os.TempDir(),         // the current folder may be closed to that user
		UID:  postgresUID(),
	})
}

// copyTemplate copies a cluster as initdb left it, which takes a tenth of the time.
func (p *Postgres) copyTemplate(ctx context.Context) error {
	place := fnv.New32a() // the same version from another place may have been built otherwise
	place.Write([]byte(p.bin))
	name := fmt.Sprintf("postgres-%s-%08x", p.version, place.Sum32())
	return fromTemplate(name, p.DataDir(), postgresUID(), func() error { return p.initdb(ctx, p.DataDir()) })
}

// settings returns what a new cluster's postgresql.conf gets.
func (config PostgresConfig) settings() map[string]string {
	settings := map[string]string{
		"listen_addresses":          "127.0.0.1",
		"unix_socket_directories":   "",
		"wal_level":                 "logical",
		"max_connections":           "200",
		"max_prepared_transactions": "100",
		"max_replication_slots":     "100",
		"max_wal_senders":           "100",
		"fsync":                     "off",
		"log_line_prefix":           "%m [%p] %a@%d ",
	}
	if config.Fsync {
		settings["fsync"] = "on"
	}
	maps.Copy(settings, config.Settings)
	return settings
}

// appendSettings appends to postgresql.conf, where the last one of a name counts. Unlike arguments, what stands there
// can be changed by ALTER SYSTEM.
func (p *Postgres) appendSettings(settings map[string]string) error {
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&lines, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	file, err := os.OpenFile(filepath.Join(p.DataDir(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString("\n" + lines.String())
	return errors.Join(err, file.Close())
}

// query runs one statement on a connection of its own and scans its only row into result, unless that is nil.
func (p *Postgres) query(ctx context.Context, database, sql string, result any, args ...any) error {
	return p.withConn(ctx, database, func(conn *pgx.Conn) error {
		if result == nil {
			_, err := conn.Exec(ctx, sql, args...)
			return err
		}
		return conn.QueryRow(ctx, sql, args...).Scan(result)
	})
}

func (p *Postgres) withConn(ctx context.Context, database string, do func(*pgx.Conn) error) error {
	config, err := pgx.ParseConfig(p.URL(database))
	if err != nil {
		return err
	}
	config.ConnectTimeout = 5 * time.Second
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return do(conn)
}
