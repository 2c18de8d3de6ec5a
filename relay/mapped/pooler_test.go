package mapped

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// pooler is a pool in transaction mode: a client has a server's connection until its transaction ends.
type pooler struct {
	t        *testing.T
	servers  chan *pgconn.HijackedConn
	settings map[string]string
}

// startPooler returns the config of a pool of size connections before a database.
func startPooler(t *testing.T, db database, size int) *pgx.ConnConfig {
	t.Helper()
	p := &pooler{t: t, servers: make(chan *pgconn.HijackedConn, size)}
	for range size {
		conn, err := pgconn.ConnectConfig(t.Context(), &db.Config().Config)
		must(t, err)
		if err := conn.SyncConn(t.Context()); err != nil { // or pgx may still read in the background
			t.Fatal(err)
		}
		server, err := conn.Hijack()
		must(t, err)
		t.Cleanup(func() { _ = server.Conn.Close() })
		p.settings = server.ParameterStatuses
		p.servers <- server
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = client.Close() }()
				p.serve(client)
			}()
		}
	}()
	cfg := db.Config()
	cfg.Host, cfg.Port = "127.0.0.1", uint16(listener.Addr().(*net.TCPAddr).Port)
	cfg.TLSConfig, cfg.Fallbacks = nil, nil
	return cfg
}

func (p *pooler) serve(client net.Conn) {
	backend := pgproto3.NewBackend(client, client)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	for name, value := range p.settings {
		backend.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
	backend.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if backend.Flush() != nil {
		return
	}
	var server *pgconn.HijackedConn
	defer func() {
		if server != nil {
			p.servers <- server
		}
	}()
	for {
		kind, frame, err := readFrame(client)
		if err != nil || kind == 'X' {
			return
		}
		if server == nil {
			server = <-p.servers
		}
		if _, err := server.Conn.Write(frame); err != nil {
			return
		}
		if kind != 'Q' && kind != 'S' {
			continue
		}
		for {
			kind, frame, err := readFrame(server.Conn)
			if err != nil {
				return
			}
			if _, err := client.Write(frame); err != nil {
				return
			}
			if kind == 'Z' {
				if frame[5] == 'I' {
					p.servers <- server
					server = nil
				}
				break
			}
		}
	}
}

// readFrame reads a message of the protocol.
func readFrame(r io.Reader) (kind byte, frame []byte, err error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	frame = make([]byte, 1+binary.BigEndian.Uint32(head[1:]))
	copy(frame, head)
	_, err = io.ReadFull(r, frame[5:])
	return head[0], frame, err
}

func TestAnAdvisoryLockIsNotHeldThroughAPoolerOfTransactions(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for _, size := range []int{1, 2, 5} {
		db := newDatabase(t)
		source := opened(t)(Open(mapping.Advisory, startPooler(t, db, size), events(), Config{Name: "one"}))
		ctx, cancel := context.WithCancel(await.Context(t))
		if size == 1 { // the deadline may be the answer
			ctx, cancel = context.WithTimeout(ctx, await.Expiry(5*time.Second))
		}
		_, err := source.Acquire(ctx)
		cancel()
		// With a single connection in the pool the probe can wait for itself; then the relay waits as well.
		if !errors.Is(err, ErrTransactionPooler) && (size > 1 || !errors.Is(err, context.DeadlineExceeded)) {
			t.Errorf("through a pool of %d: %v, want ErrTransactionPooler", size, err)
		}
	}
}

func TestLeasesWorkThroughAPoolerOfTransactions(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	const total = 500
	db.Exec(`INSERT INTO events (topic, key, payload) SELECT 't', (n % 9)::text, convert_to(n::text, 'UTF8') FROM generate_series(1, $1) n`, total)
	m := events()
	m.Claim = mapping.Claim{Until: "locked_until", Owner: "owner"}
	source := opened(t)(Open(mapping.Lease, startPooler(t, db, 3), m, Config{Name: "one", PollIdle: 5 * time.Millisecond}))
	broker := relaytest.NewMemory()
	ctx, stop := testdb.Run(t, source, broker, relay.Config{Batch: 50})
	if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= total }); err != nil {
		t.Errorf("%d of %d messages came: %v", len(broker.Messages()), total, err)
	}
	stop()
	if got := db.Value("SELECT count(*) FROM events WHERE status <> 'done'"); got != "0" || len(broker.Messages()) != total {
		t.Errorf("%s rows are not marked, %d messages came", got, len(broker.Messages()))
	}
	if got := db.Value(
		"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'outbox relay%'"); got != "0" {
		t.Errorf("%s sessions of the server were changed for others", got)
	}
}

// Behind a pooler of transactions nothing can be set, so what the role or the database has set must be right.
func TestSettingsThatMatterAreRefusedBehindAPoolerOfTransactions(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for _, setting := range []string{"bytea_output = 'escape'", "datestyle = 'German'", "default_transaction_isolation = 'serializable'",
		"synchronous_commit = 'off'"} {
		db := newDatabase(t)
		db.Exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET ` + strings.ReplaceAll(setting, "'", "''") + `', current_database()); END $$`)
		source := opened(t)(Open(mapping.SkipLocked, startPooler(t, db, 3), events(), Config{Name: "one"}))
		name, _, _ := strings.Cut(setting, " ")
		s, err := source.Acquire(t.Context())
		if err == nil {
			_ = s.Close(t.Context())
		}
		if !errors.Is(err, ErrTransactionPooler) || !outbox.IsPermanent(err) || !strings.Contains(err.Error(), name+" is ") {
			t.Errorf("%s: %v", setting, err)
		}
	}
}

// A pooler announces a number of its own for the server's process, often one that is none.
func TestRelaysReadThroughAPoolerOfSessions(t *testing.T) {
	t.Parallel()
	for name, newSource := range strategies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			direct := db.Config()
			b := servers.OwnPgBouncer(t, servers.PgBouncerConfig{Server: net.JoinHostPort(direct.Host, strconv.Itoa(int(direct.Port))),
				Settings: map[string]string{"pool_mode": "session"}})
			pooled, err := pgx.ParseConfig(b.URL(direct.Database))
			must(t, err)
			for i := range 3 {
				db.Exec(`INSERT INTO events (topic, key, payload, part) VALUES ('t', 'a', $1, 0)`, strconv.Itoa(i))
				source, err := newSource(pooled, Config{Name: "one", PollIdle: 5 * time.Millisecond})
				must(t, err)
				s := acquired(t, source)
				ds := read(t, s, 1)
				if got := string(ds[0].Payload); got != strconv.Itoa(i) {
					t.Errorf("read %s, want %d", got, i)
				}
				must(t, s.Settle(t.Context(), relay.Settlement{Through: &ds[0]}))
				must(t, s.Close(t.Context()))
			}
		})
	}
}
