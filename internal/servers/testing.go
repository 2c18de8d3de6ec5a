package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Main runs the tests of a package whose tests share servers, closes the shared servers and exits:
//
//	func TestMain(m *testing.M) { servers.Main(m) }
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run is Main without the exit, for a TestMain that has more to do. It returns the exit code.
func Run(m *testing.M) int {
	shared.open()
	code := m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// TestPostgres returns a cluster that all tests of this binary share which want the same, started on first use. Tests
// take a database of their own in it, see [TestDatabase], and don't stop it. At most one config is given. The test is
// skipped, or fails where servers are required, if there is no such PostgreSQL.
func TestPostgres(t testing.TB, config ...PostgresConfig) *Postgres {
	t.Helper()
	want := wanted(t, config)
	return share(t, fmt.Sprintf("postgres %+v", want), func(ctx context.Context) (*Postgres, error) {
		given, err := givenPostgres(ctx)
		if err != nil {
			return nil, err
		}
		// One that can't be what is wanted is passed over.
		if given != nil && (want.Major == "" || want.Major == majorOf(given.version)) && len(want.Settings) == 0 &&
			want.Preload == "" && !want.TwoPhase && !want.Fsync && !want.OwnIdentity {
			return given, nil
		}
		return startInMemory(ctx, want)
	})
}

// TestDatabase returns the URL of a fresh database in the cluster that [TestPostgres] returns. At the end of the test
// the database is dropped, with its replication slots and prepared transactions; open connections are cut.
func TestDatabase(t testing.TB, config ...PostgresConfig) string {
	t.Helper()
	p := TestPostgres(t, config...)
	name, err := p.CreateDatabase(t.Context())
	return p.lend(t, name, err)
}

// TestCopy is TestDatabase for a copy of the database of that name, which fill fills when the first test of this binary
// asks for one: to copy takes a tenth of the time of an installation.
func TestCopy(t testing.TB, of string, fill func(ctx context.Context, url string) error, config ...PostgresConfig) string {
	t.Helper()
	p := TestPostgres(t, config...)
	name, err := p.copyOf(t.Context(), of, fill)
	return p.lend(t, name, err)
}

// lend returns the URL of a database that was made for a test, which drops it.
func (p *Postgres) lend(t testing.TB, name string, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.DropDatabase(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	return p.URL(name)
}

// OwnPostgres returns a cluster that is the test's alone, to be killed, frozen and promoted. It is started even if the
// environment has an address. It is closed at the end of the test. At most one config is given.
func OwnPostgres(t testing.TB, config ...PostgresConfig) *Postgres {
	t.Helper()
	need(t, "postgres@own")
	return own(t, startInMemory, []PostgresConfig{wanted(t, config)})
}

// startInMemory starts a cluster of tests: in memory where that is possible, unless the test is about the disk.
func startInMemory(ctx context.Context, config PostgresConfig) (*Postgres, error) {
	if config.Storage == "" && !config.Fsync {
		config.Storage = memory()
	}
	return StartPostgres(ctx, config)
}

// OwnStandby returns a standby of a cluster, closed at the end of the test.
func OwnStandby(t testing.TB, primary *Postgres, config ...StandbyConfig) *Postgres {
	t.Helper()
	return own(t, primary.Standby, config)
}

// CreateDatabase creates a database with a fresh name and returns that.
func (p *Postgres) CreateDatabase(ctx context.Context) (name string, err error) {
	return p.createFrom(ctx, "template1")
}

// CopyDatabase creates a copy of a database, to which nobody is connected, with a fresh name and returns that.
func (p *Postgres) CopyDatabase(ctx context.Context, of string) (name string, err error) {
	return p.createFrom(ctx, of)
}

func (p *Postgres) createFrom(ctx context.Context, template string) (name string, err error) {
	name = "outbox_" + strings.ToLower(rand.Text()[:16])
	sql := "CREATE DATABASE " + pgx.Identifier{name}.Sanitize() + " TEMPLATE " + pgx.Identifier{template}.Sanitize()
	if majorOf(p.version) != "14" {
		sql += " STRATEGY file_copy" // the quicker one where nothing is synced
	}
	if err := p.query(ctx, "postgres", sql, nil); err != nil {
		return "", fmt.Errorf("create a database in %s: %w", p.name, err)
	}
	return name, nil
}

// copyOf creates a copy of a database, which is there from the first time on. A server from the environment keeps none.
func (p *Postgres) copyOf(ctx context.Context, of string, fill func(ctx context.Context, url string) error) (name string, err error) {
	p.copying.Lock()
	defer p.copying.Unlock()
	if of = "outbox_" + of; p.base != nil || !slices.Contains(p.copied, of) {
		if name, err = p.CreateDatabase(ctx); err == nil {
			err = fill(ctx, p.URL(name))
		}
		if err != nil || p.base != nil {
			return name, err
		}
		// Nobody can connect to the copied one, which would keep it from being copied.
		sql := fmt.Sprintf("ALTER DATABASE %s RENAME TO %s; ALTER DATABASE %[2]s ALLOW_CONNECTIONS false", name, of)
		if err := p.query(ctx, "postgres", sql, nil); err != nil {
			return "", err
		}
		p.copied = append(p.copied, of)
	}
	return p.createFrom(ctx, of)
}

// DropDatabase drops a database with what would keep it from being dropped: its replication slots, prepared
// transactions and connections. One that isn't there is fine.
func (p *Postgres) DropDatabase(ctx context.Context, name string) error {
	err := p.withConn(ctx, "postgres", func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT gid FROM pg_prepared_xacts WHERE database = $1", name)
		if err != nil {
			return err
		}
		prepared, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		if len(prepared) > 0 {
			if err := p.rollbackPrepared(ctx, name, prepared); err != nil {
				return err
			}
		}
		return dropDatabase(ctx, conn, name)
	})
	if err != nil {
		return fmt.Errorf("drop the database %s of %s: %w", name, p.name, err)
	}
	return nil
}

// rollbackPrepared rolls prepared transactions back, which takes a connection to their database.
func (p *Postgres) rollbackPrepared(ctx context.Context, database string, gids []string) error {
	return p.withConn(ctx, database, func(conn *pgx.Conn) error {
		for _, gid := range gids {
			if _, err := conn.Exec(ctx, "ROLLBACK PREPARED '"+strings.ReplaceAll(gid, "'", "''")+"'"); err != nil {
				return err
			}
		}
		return nil
	})
}

func dropDatabase(ctx context.Context, conn *pgx.Conn, name string) error {
	// A slot can be dropped once its walsender has gone, which takes a moment after the first statement; a client that
	// reconnects meanwhile makes one more round necessary.
	const rounds = 100
	for round := 1; ; round++ {
		_, err := conn.Exec(ctx, "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE datname = $1", name)
		if err == nil {
			_, err = conn.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1", name)
		}
		if err == nil {
			_, err = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
		}
		if err == nil || round == rounds || ctx.Err() != nil {
			return err
		}
	}
}

// givenPostgres returns the server of the environment, nil if there is none.
func givenPostgres(ctx context.Context) (*Postgres, error) {
	address := os.Getenv(envPostgres)
	if address == "" {
		return nil, nil
	}
	base, err := url.Parse(address)
	if err != nil || base.Host == "" {
		return nil, fmt.Errorf("use the PostgreSQL of %s: it must be a URL like postgres://user@host:5432/postgres", envPostgres)
	}
	p := &Postgres{base: base}
	p.addr = base.Host
	p.given = envPostgres
	p.name = "PostgreSQL at " + base.Host
	if err := p.query(ctx, "postgres", "SHOW server_version", &p.version); err != nil {
		return nil, fmt.Errorf("use the PostgreSQL of %s: %w", envPostgres, err)
	}
	p.version, _, _ = strings.Cut(p.version, " ")
	return p, nil
}

// given is how an address in the environment is used.
type given struct {
	env     string
	what    string // is there
	like    string // what the address looks like: host:port, several with commas, or a URL
	answers func(ctx context.Context, addr string) error
}

// The addresses that the environment may give, beside that of a PostgreSQL.
var (
	givenKafka     = given{envKafka, "Kafka", "host:9092", kafkaAnswers}
	givenNATS      = given{envNATS, "NATS", "nats://host:4222", natsAnswers}
	givenRedis     = given{envRedis, "Redis", "redis://host:6379", redisAnswers}
	givenRabbitMQ  = given{envRabbitMQ, "RabbitMQ", "amqp://user:password@host:5672", rabbitAnswers}
	givenElasticMQ = given{envElasticMQ, "ElasticMQ", "host:9324", elasticAnswers}
)

// take makes s the server of the environment, and returns whether there is one.
func (g given) take(ctx context.Context, s *Server) (bool, error) {
	address := os.Getenv(g.env)
	if address == "" {
		return false, nil
	}
	s.addr = address
	ask, _, _ := strings.Cut(address, ",")
	if scheme, _, isURL := strings.Cut(g.like, "://"); isURL {
		u, err := url.Parse(address)
		if err != nil || u.Port() == "" {
			return false, fmt.Errorf("use the %s of %s: it must be like %s", g.what, g.env, g.like)
		}
		s.addr, s.url, ask = u.Host, address, u.Host
		if u.Scheme != scheme {
			ask = "" // one with TLS wants a handshake first
		}
	}
	if ask != "" {
		if err := g.answers(ctx, ask); err != nil {
			return false, fmt.Errorf("use the %s of %s: %w", g.what, g.env, err)
		}
	}
	s.name, s.given = g.what+" at "+s.addr, g.env
	return true, nil
}

// wanted returns the config that a test asks for.
func wanted(t testing.TB, config []PostgresConfig) PostgresConfig {
	t.Helper()
	want := only(t, config)
	if want.Major == "" {
		want.Major = os.Getenv(envPostgresMajor)
	} else if want.Major != newestMajor {
		need(t, "postgres@"+want.Major)
	}
	return want
}

func only[C any](t testing.TB, config []C) (one C) {
	t.Helper()
	if len(config) > 1 {
		t.Fatalf("%d configs given, and one server wanted", len(config))
	}
	if len(config) == 1 {
		one = config[0]
	}
	return one
}

type closer interface {
	Close() error
	Log() string
}

// own starts a server for a test.
func own[S closer, C any](t testing.TB, start func(context.Context, C) (S, error), config []C) S {
	t.Helper()
	need(t, part[S]())
	server, err := start(t.Context(), only(t, config))
	if err != nil {
		missing(t, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server's log ends with:\n%s", server.Log())
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// Long skips a test that keeps two cores busy for seconds where such tests are left out.
func Long(t testing.TB) {
	t.Helper()
	need(t, "long")
}

// need skips a test where the part that it needs is left out.
func need(t testing.TB, part string) {
	t.Helper()
	if testing.Short() {
		t.Skipf("it needs %s, and -short means no server", part)
	}
	if !Wanted(part) {
		t.Skipf("it needs %s, which %s leaves out: run make test-all", part, envServers)
	}
}

// Wanted reports whether tests may use a part, such as kafka, or what is long.
func Wanted(part string) bool {
	list := os.Getenv(envServers)
	return list == "" || list == "all" || slices.Contains(strings.Split(list, ","), part)
}

// part returns the name of a server in OUTBOX_TEST_SERVERS: postgres for a *servers.Postgres.
func part[S any]() string {
	return strings.TrimSuffix(strings.ToLower(reflect.TypeFor[S]().Elem().Name()), "cluster")
}

// missing ends a test that has no server.
func missing(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	if Required() {
		t.Fatalf("%v, and must be here: run make servers", err)
	}
	t.Skipf("%v: run make servers", err)
}

// Required reports whether tests fail without what they need.
func Required() bool { return os.Getenv("CI") != "" || os.Getenv(envServers) != "" }

// shared holds the shared servers of this test binary. A variable of the package, because nothing else reaches from
// TestMain into tests.
var shared pool

// pool holds servers by what they were wanted for.
type pool struct {
	mu      sync.Mutex
	opened  bool
	entries map[string]*entry
}

type entry struct {
	start  sync.Once
	server any
	err    error
}

func (p *pool) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened = true
	p.entries = map[string]*entry{}
}

// close closes all servers. None is started from then on.
func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened = false
	var errs []error
	for _, e := range p.entries {
		if server, ok := e.server.(closer); ok {
			errs = append(errs, server.Close())
		}
	}
	return errors.Join(errs...)
}

func (p *pool) entry(key string) (*entry, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.opened {
		return nil, false
	}
	e := p.entries[key]
	if e == nil {
		e = &entry{}
		p.entries[key] = e
	}
	return e, true
}

// shareGiven returns the server that all tests share which want the same: empty, made that of the environment, or one
// that is started.
func shareGiven[S interface {
	closer
	server() *Server
}, C any](t testing.TB, empty S, from given, start func(context.Context, C) (S, error), config []C) S {
	t.Helper()
	want := only(t, config)
	return share(t, fmt.Sprintf("%T %+v", empty, want), func(ctx context.Context) (S, error) {
		if is, err := from.take(ctx, empty.server()); is || err != nil {
			return empty, err
		}
		return start(ctx, want)
	})
}

// share returns the server of that key, after starting it if it is the first to ask.
func share[S closer](t testing.TB, key string, start func(context.Context) (S, error)) S {
	t.Helper()
	need(t, part[S]())
	e, open := shared.entry(key)
	if !open {
		t.Fatal("the package needs func TestMain(m *testing.M) { servers.Main(m) }, which closes the shared servers")
	}
	e.start.Do(func() {
		var server S
		if server, e.err = start(context.Background()); e.err == nil { // it outlives the test that needs it first
			e.server = server
		}
	})
	if e.err != nil {
		missing(t, e.err)
	}
	return e.server.(S)
}
