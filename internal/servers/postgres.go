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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/child"
)

// PostgresConfig configures a cluster. The zero value is one for tests.
type PostgresConfig struct {
	// Major is the wanted major version, 14 to 18. Default: the newest that is installed.
	Major string

	// Fsync makes commits wait for the disk. By default they don't, which is faster, survives SIGKILL of the server,
	// and would not survive a power failure.
	Fsync bool

	// TwoPhase allows transactions that are prepared for a commit in two phases. PostgreSQL's default is to refuse
	// them.
	TwoPhase bool

	// Settings are added to postgresql.conf. They win over those that every cluster gets: wal_level=logical,
	// max_connections=200, max_replication_slots=100, max_wal_senders=100.
	Settings map[string]string

	// Storage is a folder in which the cluster makes its own, such as a small file system that can be filled up. root's
	// PostgreSQL runs as another user, who has to be able to enter it. Default: the folder for temporary files.
	Storage string

	// Preload is a shared library that the server's processes begin with, such as one that shifts their clock; Linux
	// only.
	Preload string

	// OwnIdentity runs initdb instead of copying a cluster that was made by it once. It takes half a second more and
	// gives the cluster a system identifier of its own; otherwise clusters of one version may have the same.
	OwnIdentity bool
}

// Postgres is a cluster with the superuser postgres, who needs no password, on 127.0.0.1.
type Postgres struct {
	Server
	version string
	bin     string
	preload string
	base    *url.URL // of a server from the environment

	primary *Postgres // of a standby
	slot    string

	copying sync.Mutex
	copied  []string // databases that are copied, guarded by copying
}

// StartPostgres starts a cluster and returns when it answers. The caller must Close it. The error wraps [ErrNotFound]
// when no such version is installed.
func StartPostgres(ctx context.Context, config PostgresConfig) (*Postgres, error) {
	bin, version, err := FindPostgres(config.Major)
	p := &Postgres{version: version, bin: bin, preload: config.Preload}
	return orNone(p, p.launch(ctx, err, p.kindOf("PostgreSQL "+version, config.Storage, func() error {
		if err := p.create(ctx, config.OwnIdentity); err != nil {
			return err
		}
		return p.appendSettings(config.settings())
	})))
}

// kindOf describes a cluster in storage, made by place.
func (p *Postgres) kindOf(name, storage string, place func() error) kind {
	return kind{
		name:    name,
		uid:     postgresUID(),
		storage: storage,
		place:   place,
		command: func() child.Command {
			return child.Command{
				Path:    executable(p.bin, "postgres"),
				Args:    []string{"-D", p.DataDir()},
				Env:     []string{"LC_ALL=C", "LD_PRELOAD=" + p.preload},
				OnDeath: syscall.SIGQUIT, // immediate shutdown, of the children too
			}
		},
		ready:   func(ctx context.Context, _ string) error { return p.query(ctx, "postgres", "SELECT 1", nil) },
		stopSig: syscall.SIGINT, // fast shutdown
		closing: p.leave,
	}
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
	return p.do("crash", func() error { return p.stop(syscall.SIGQUIT) })
}

// leave ends a server that is to be closed, and removes what that would leave: a standby's replication slot, if its
// primary answers, and shared memory.
func (p *Postgres) leave() error {
	var err error
	if p.process != nil && p.process.Running() {
		err = p.stop(syscall.SIGQUIT)
	}
	p.dropSlot()
	p.freeSharedMemory()
	return err
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

// create makes the data of a cluster, unless it is there: a copy of one as initdb left it, which takes a tenth of the
// time, or one with an identity of its own.
func (p *Postgres) create(ctx context.Context, ownIdentity bool) error {
	if _, err := os.Stat(p.DataDir()); err == nil {
		return nil
	}
	initdb := func() error {
		return p.run(ctx, "initdb", "-D", p.DataDir(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	}
	if p.uid != 0 {
		if err := enterable(p.bin); err != nil {
			return err
		}
	}
	if ownIdentity {
		return initdb()
	}
	place := fnv.New32a() // the same version from another place may have been built otherwise
	place.Write([]byte(p.bin))
	return fromTemplate(fmt.Sprintf("postgres-%s-%08x", p.version, place.Sum32()), p.DataDir(), p.uid, initdb)
}

// run runs one of PostgreSQL's programs to its end.
func (p *Postgres) run(ctx context.Context, program string, args ...string) error {
	return child.Run(ctx, child.Command{
		Path: executable(p.bin, program),
		Args: args,
		Env:  []string{"LC_ALL=C"}, // a LANG that the machine doesn't have makes initdb fail
		Dir:  os.TempDir(),         // the current folder may be closed to that user
		UID:  p.uid,
	})
}

// settings returns what a new cluster's postgresql.conf gets.
func (config PostgresConfig) settings() map[string]string {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"wal_level":               "logical",
		"max_connections":         "200",
		"max_replication_slots":   "100",
		"max_wal_senders":         "100",
		"fsync":                   "off",
		"log_line_prefix":         "%m [%p] %a@%d ",
	}
	if config.Fsync {
		settings["fsync"] = "on"
	}
	if config.TwoPhase {
		settings["max_prepared_transactions"] = "100"
	}
	maps.Copy(settings, config.Settings)
	return settings
}

// appendSettings appends to postgresql.conf, where the last one of a name counts, with the port. Unlike arguments, what
// stands there can be changed by ALTER SYSTEM.
func (p *Postgres) appendSettings(all ...map[string]string) error {
	quoted := map[string]string{"port": strconv.Itoa(p.Port())}
	for _, more := range all {
		for name, value := range more {
			quoted[name] = strings.ReplaceAll(value, "'", "''")
		}
	}
	file, err := os.OpenFile(filepath.Join(p.DataDir(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString("\n" + settings("%s = '%s'", quoted))
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
