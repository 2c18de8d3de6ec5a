package replication

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

func TestMain(m *testing.M) { servers.Main(m) }

// database is a fresh one with the outbox in it.
type database struct{ testdb.DB }

func newDatabase(t testing.TB, config ...servers.PostgresConfig) database {
	t.Helper()
	db := database{testdb.Published(t, config...)}
	// The slots of a database keep it from being dropped.
	t.Cleanup(func() { db.DropSlots() })
	return db
}

// alone makes a database with the outbox in a cluster of its own.
func alone(t testing.TB, config ...servers.PostgresConfig) (database, *servers.Postgres) {
	t.Helper()
	pg := servers.OwnPostgres(t, config...)
	db := database{testdb.DB{T: t, URL: pg.URL("postgres")}}
	db.Install()
	return db, pg
}

func (db database) insert(texts ...string) {
	db.T.Helper()
	for _, text := range texts {
		db.Exec(`INSERT INTO outbox.messages (topic, key, payload) VALUES ('t', 'k', convert_to($1, 'UTF8'))`, text)
	}
}

// lines are connections that can be cut like those of a process that is killed.
type lines struct {
	mu   sync.Mutex
	open []net.Conn
}

func (l *lines) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err == nil {
		l.mu.Lock()
		l.open = append(l.open, conn)
		l.mu.Unlock()
	}
	return conn, err
}

func (l *lines) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.open {
		_ = conn.Close()
	}
	l.open = nil
}

// source makes one whose connections can be cut.
func (db database) source(destination string, cfg Config) (*Source, *lines) {
	db.T.Helper()
	if cfg.Table.PollIdle == 0 {
		cfg.Table.PollIdle = 5 * time.Millisecond
	}
	if cfg.Table.Lease == 0 {
		cfg.Table.Lease = 10 * time.Second // a busy machine may lose the default of 3 s
	}
	if cfg.Table.Logger == nil {
		cfg.Table.Logger = slog.New(slog.NewTextHandler(testLog{db.T}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	conn := db.Config()
	l := &lines{}
	conn.DialFunc = l.dial
	s, err := New(conn, destination, cfg)
	if err != nil {
		db.T.Fatal(err)
	}
	return s, l
}

// testLog writes to the test's log until the test is over.
type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	if l.t.Context().Err() == nil {
		l.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

// crash ends a session as SIGKILL of its process would.
func crash(s relay.Session, l *lines) {
	l.cut()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Close(ctx) // it can't write any more
}

func acquire(t testing.TB, s relay.Source) *session {
	t.Helper()
	return testdb.Acquire(t, s).(*session)
}

// read returns the next n messages; their texts are copies.
func read(t testing.TB, s relay.Session, n int) (ds []relay.Delivery) {
	t.Helper()
	ctx := await.Context(t)
	for len(ds) < n {
		b, err := s.Next(ctx, n-len(ds))
		if err != nil {
			t.Fatalf("next, after %q: %v", texts(ds), err)
		}
		ds = append(ds, b.Deliveries...)
	}
	return ds
}

func texts(ds []relay.Delivery) (all []string) {
	for i := range ds {
		all = append(all, string(ds[i].Payload))
	}
	return all
}

// one reads a message, and settles it.
func one(t testing.TB, s relay.Session) string {
	t.Helper()
	ds := read(t, s, 1)
	testdb.Settle(t, s, &ds[0])
	return texts(ds)[0]
}

// streaming reads nothing until the log is read; offLog, until the table is.
func streaming(t testing.TB, s *session) { t.Helper(); switches(t, s, true) }
func offLog(t testing.TB, s *session)    { t.Helper(); switches(t, s, false) }

func switches(t testing.TB, s *session, toLog bool) {
	t.Helper()
	ctx := await.Context(t)
	for s.isStreaming() != toLog {
		b, err := s.Next(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Deliveries) > 0 {
			t.Fatalf("read %q before the switch, to the log: %t", texts(b.Deliveries), toLog)
		}
	}
}
