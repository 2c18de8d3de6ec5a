package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
	"github.com/pgoutbox/outbox/schema"
)

// bed is what contenders run on: the servers, a topic, and a database of this run's own, which is dropped
// at the end.
type bed struct {
	cfg            *Config
	server         string // URL of the PostgreSQL server, in whichever database
	topics         []string
	to             *target
	proxy          *testnet.Proxy // before the broker; nil where none was asked for
	versions       map[string]string
	serverSettings map[string]string

	database string // its name; "" while there is none
	url      string
	loaded   *loaded // what is in it; nil while there is nothing

	closers []func()
}

// postgresSettings are those of a PostgreSQL that a benchmark starts. Commits wait for the disk, as they
// should; what would start at some moment or other, and fall on one contender alone, is out of the way.
func postgresSettings() map[string]string {
	return map[string]string{
		"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "autovacuum": "off",
	}
}

// openBed gets the servers. proxied puts a proxy before the broker that can make it distant.
func openBed(ctx context.Context, cfg *Config, proxied bool) (_ *bed, err error) {
	topic := "outbox-bench-" + strings.ToLower(rand.Text()[:8])
	b := &bed{cfg: cfg, server: cfg.Postgres,
		versions: map[string]string{"outbox": cfg.Version, "go": runtime.Version()}, serverSettings: map[string]string{}}
	for i := range cfg.work().topics {
		b.topics = append(b.topics, fmt.Sprintf("%s-%d", topic, i))
	}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.server == "" {
		cfg.say("starting PostgreSQL")
		pg, err := servers.StartPostgres(ctx, servers.PostgresConfig{Fsync: true, Settings: postgresSettings()})
		if err != nil {
			return nil, missing(err, "name a server with --database-url")
		}
		b.closers = append(b.closers, func() { _ = pg.Close() }) // best effort: this process's death ends it too
		b.server = pg.URL("postgres")
		for name, value := range postgresSettings() {
			b.serverSettings["postgres."+name] = value
		}
	}
	if err := b.askPostgres(ctx); err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	if cfg.Broker == "" {
		return b, nil
	}
	if proxied {
		if b.proxy, err = testnet.StartProxy(); err != nil {
			return nil, err
		}
		b.closers = append(b.closers, b.proxy.Close)
	}
	if cfg.Address == "" {
		cfg.say("starting %s", cfg.Broker)
	}
	if b.to, err = openTarget(ctx, cfg, b.topics, b.proxy); err != nil {
		return nil, err
	}
	b.closers = append(b.closers, b.to.close)
	b.versions[cfg.Broker] = b.to.version
	if cfg.Address == "" {
		if err := b.warmUp(ctx, warmUpMessages); err != nil {
			return nil, fmt.Errorf("warm up %s: %w", cfg.Broker, err)
		}
	}
	return b, nil
}

// warmUpMessages take a second or two, and are what Kafka's compiler needs until it knows what is hot.
const warmUpMessages = 300_000

// warmUp sends messages through the broker and takes them out again, so that the first contender doesn't
// meet another broker than the last.
func (b *bed) warmUp(ctx context.Context, messages int) error {
	b.cfg.say("warming up %s", b.cfg.Broker)
	if err := b.to.fresh(ctx); err != nil {
		return err
	}
	free := freePages(pages)
	out, err := openPipe(order{Broker: b.cfg.Broker, Address: b.to.address, Topic: b.topics[0]}, free, 2*time.Millisecond)
	if err != nil {
		return err
	}
	err = fill(ctx, out, free, messages)
	if err := errors.Join(err, out.flush(ctx)); err != nil {
		return err
	}
	return b.to.readAll(ctx, func([]byte) {})
}

// fill sends messages of no meaning.
func fill(ctx context.Context, out pipe, free chan *page, messages int) error {
	payload := make([]byte, 256)
	for sent := 0; sent < messages; {
		pg, err := take(ctx, free)
		if err != nil {
			return err
		}
		for sent < messages {
			id := outbox.NewID()
			if !pg.add(id[:], []byte(keyName(sent%1000)), payload) {
				break
			}
			sent++
		}
		if err := out.send(ctx, pg); err != nil {
			return err
		}
	}
	return nil
}

func (b *bed) askPostgres(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, b.server)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var version, fsync, commit string
	if err := conn.QueryRow(ctx,
		"SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')").
		Scan(&version, &fsync, &commit); err != nil {
		return err
	}
	b.versions["postgres"], _, _ = strings.Cut(version, " ")
	b.serverSettings["postgres.fsync"], b.serverSettings["postgres.synchronous_commit"] = fsync, commit
	return nil
}

// freshDatabase makes a new database with the outbox's tables, in place of the one before.
func (b *bed) freshDatabase(ctx context.Context) error {
	if err := b.dropDatabase(ctx); err != nil {
		return err
	}
	name := "outbox_bench_" + strings.ToLower(rand.Text()[:12])
	conn, err := pgx.Connect(ctx, b.server)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		return fmt.Errorf("create a database for the benchmark: %w", err)
	}
	b.database = name
	if b.url, err = inDatabase(b.server, name); err != nil {
		return err
	}
	fresh, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return err
	}
	defer fresh.Close(context.WithoutCancel(ctx))
	_, err = schema.Up(ctx, fresh, schema.UpConfig{})
	return err
}

// release ends what a backlog holds open.
func (b *bed) release() {
	if b.loaded != nil {
		b.loaded.release()
		b.loaded = nil
	}
}

func (b *bed) dropDatabase(ctx context.Context) error {
	b.release()
	if b.database == "" {
		return nil
	}
	conn, err := pgx.Connect(ctx, b.server)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := b.leaveNoSlots(ctx); err != nil {
		return err
	}
	if _, err = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{b.database}.Sanitize()+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop the benchmark's database: %w", err)
	}
	b.database = ""
	return nil
}

// close gives everything back, newest first. It does so after Ctrl-C too.
func (b *bed) close() {
	ctx, cancel := context.WithTimeout(context.Background(), hangUp)
	defer cancel()
	b.release()
	if b.server != "" && b.cfg.Postgres != "" {
		if err := b.dropDatabase(ctx); err != nil {
			b.cfg.say("%v", err)
		}
	}
	for i := len(b.closers) - 1; i >= 0; i-- {
		b.closers[i]()
	}
}

// inDatabase is the address of another database of the same server.
func inDatabase(server, name string) (string, error) {
	cfg, err := pgx.ParseConfig(server)
	if err != nil {
		return "", err
	}
	if !strings.Contains(server, "://") { // keywords and values: the last one of a name counts
		return server + " dbname=" + name, nil
	}
	u, err := parseURL(server)
	if err != nil {
		return "", fmt.Errorf("the address of %s: %w", cfg.Host, err)
	}
	u.Path = "/" + name
	return u.String(), nil
}

// missing says what to do where a server isn't installed.
func missing(err error, otherwise string) error {
	if errors.Is(err, servers.ErrNotFound) {
		return fmt.Errorf(`%w: run "make servers", or %s`, err, otherwise)
	}
	return err
}

// parseURL is url.Parse without the URL, and so the password, in its error.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("it is not a URL")
	}
	return u, nil
}
