package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Main is what TestMain of a package calls whose tests share servers: it runs the tests, closes the shared servers and
// exits.
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
	return share(t, fmt.Sprintf("postgres %+v", want), func() (*Postgres, error) {
		ctx := context.Background() // it outlives the test that needs it first
		given, err := givenPostgres(ctx)
		if err != nil {
			return nil, err
		}
		// One that can't be what is wanted is passed over.
		if given != nil && (want.Major == "" || want.Major == majorOf(given.version)) && len(want.Settings) == 0 && !want.Fsync && !want.OwnIdentity {
			return given, nil
		}
		return StartPostgres(ctx, want)
	})
}

// TestDatabase returns the URL of a fresh database in the cluster that [TestPostgres] returns. At the end of the test
// the database is dropped, with its replication slots and prepared transactions; open connections are cut.
func TestDatabase(t testing.TB, config ...PostgresConfig) string {
	t.Helper()
	p := TestPostgres(t, config...)
	name, err := p.CreateDatabase(t.Context())
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

// TestKafka returns a broker that all tests of this binary share, started on first use. A test takes topics with names
// of its own. The test is skipped, or fails where servers are required, if there is no Kafka.
func TestKafka(t testing.TB) *Kafka {
	t.Helper()
	return share(t, "kafka", func() (*Kafka, error) {
		ctx := context.Background()
		if given, err := givenKafka(ctx); given != nil || err != nil {
			return given, err
		}
		return StartKafka(ctx, KafkaConfig{})
	})
}

// TestNATS returns a server that all tests of this binary share, started on first use. A test takes streams and subjects
// with names of its own. The test is skipped, or fails where servers are required, if there is no nats-server.
func TestNATS(t testing.TB) *NATS {
	t.Helper()
	return share(t, "nats", func() (*NATS, error) {
		ctx := context.Background()
		if given, err := givenNATS(ctx); given != nil || err != nil {
			return given, err
		}
		return StartNATS(ctx)
	})
}

// OwnPostgres returns a cluster that is the test's alone, to be killed, frozen and promoted. It is started even if the
// environment has an address. It is closed at the end of the test. At most one config is given.
func OwnPostgres(t testing.TB, config ...PostgresConfig) *Postgres {
	t.Helper()
	skipShort(t)
	p, err := StartPostgres(t.Context(), wanted(t, config))
	return own(t, p, err)
}

// OwnStandby returns a standby of a cluster, closed at the end of the test.
func OwnStandby(t testing.TB, primary *Postgres, config ...StandbyConfig) *Postgres {
	t.Helper()
	skipShort(t)
	p, err := primary.Standby(t.Context(), only(t, config))
	return own(t, p, err)
}

// OwnPgBouncer returns a pooler that is the test's alone, closed at its end.
func OwnPgBouncer(t testing.TB, config PgBouncerConfig) *PgBouncer {
	t.Helper()
	skipShort(t)
	b, err := StartPgBouncer(t.Context(), config)
	return own(t, b, err)
}

// OwnKafka returns a broker that is the test's alone, to be killed and frozen. It is started even if the environment has
// an address. It is closed at the end of the test. At most one config is given.
func OwnKafka(t testing.TB, config ...KafkaConfig) *Kafka {
	t.Helper()
	skipShort(t)
	k, err := StartKafka(t.Context(), only(t, config))
	return own(t, k, err)
}

// OwnKafkaCluster returns a cluster that is the test's alone. It is started even if the environment has an address. It is
// closed at the end of the test. At most one config is given.
func OwnKafkaCluster(t testing.TB, config ...KafkaConfig) *KafkaCluster {
	t.Helper()
	skipShort(t)
	c, err := StartKafkaCluster(t.Context(), only(t, config))
	return own(t, c, err)
}

// OwnNATS returns a server that is the test's alone, to be killed and frozen. It is started even if the environment has
// an address. It is closed at the end of the test.
func OwnNATS(t testing.TB) *NATS {
	t.Helper()
	skipShort(t)
	n, err := StartNATS(t.Context())
	return own(t, n, err)
}

// CreateDatabase creates a database with a fresh name and returns that.
func (p *Postgres) CreateDatabase(ctx context.Context) (name string, err error) {
	name = "outbox_" + strings.ToLower(rand.Text()[:16])
	if err := p.query(ctx, "postgres", "CREATE DATABASE "+pgx.Identifier{name}.Sanitize(), nil); err != nil {
		return "", fmt.Errorf("create a database in %s: %w", p.name, err)
	}
	return name, nil
}

// DropDatabase drops a database with what would keep it from being dropped: its replication slots, prepared transactions
// and connections. One that isn't there is fine.
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

// givenKafka returns the broker of the environment, nil if there is none.
func givenKafka(ctx context.Context) (*Kafka, error) {
	addr := os.Getenv(envKafka)
	if addr == "" {
		return nil, nil
	}
	first, _, _ := strings.Cut(addr, ",")
	if err := kafkaAnswers(ctx, first); err != nil {
		return nil, fmt.Errorf("use the Kafka of %s: %w", envKafka, err)
	}
	return &Kafka{Server: Server{name: "Kafka at " + addr, addr: addr, given: envKafka}}, nil
}

// givenNATS returns the server of the environment, nil if there is none.
func givenNATS(ctx context.Context) (*NATS, error) {
	address := os.Getenv(envNATS)
	if address == "" {
		return nil, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Port() == "" {
		return nil, fmt.Errorf("use the NATS of %s: it must be like nats://host:4222", envNATS)
	}
	if u.Scheme != "tls" { // that one wants a handshake after its greeting
		if err := natsAnswers(ctx, u.Host); err != nil {
			return nil, fmt.Errorf("use the NATS of %s: %w", envNATS, err)
		}
	}
	return &NATS{Server: Server{name: "NATS at " + u.Host, addr: u.Host, given: envNATS}, url: address}, nil
}

// wanted returns the config that a test asks for.
func wanted(t testing.TB, config []PostgresConfig) PostgresConfig {
	t.Helper()
	want := only(t, config)
	if want.Major == "" {
		want.Major = os.Getenv(envPostgresMajor)
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

// own hands a server to a test that was started for it.
func own[S closer](t testing.TB, server S, err error) S {
	t.Helper()
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

// skipShort skips a test where servers aren't wanted.
func skipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("it needs a server, and -short means none")
	}
}

// missing ends a test that has no server.
func missing(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	if required() {
		t.Fatalf("%v, and must be here: run make servers", err)
	}
	t.Skipf("%v: run make servers", err)
}

func required() bool {
	must, err := strconv.ParseBool(os.Getenv(envRequire))
	return os.Getenv("CI") != "" || must || (err != nil && os.Getenv(envRequire) != "")
}

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
		if server, ok := e.server.(interface{ Close() error }); ok {
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

// share returns the server of that key, after starting it if it is the first to ask.
func share[S closer](t testing.TB, key string, start func() (S, error)) S {
	t.Helper()
	skipShort(t)
	e, open := shared.entry(key)
	if !open {
		t.Fatal("the package needs func TestMain(m *testing.M) { servers.Main(m) }, which closes the shared servers")
	}
	e.start.Do(func() {
		var server S
		if server, e.err = start(); e.err == nil {
			e.server = server
		}
	})
	if e.err != nil {
		missing(t, e.err)
	}
	return e.server.(S)
}
