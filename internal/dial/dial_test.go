package dial

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
)

func TestMain(m *testing.M) { servers.Main(m) }

// timeouts returns a database that has every timeout, and the value of each in milliseconds.
func timeouts(t *testing.T, config ...servers.PostgresConfig) (testdb.DB, map[string]int) {
	t.Helper()
	db := testdb.New(t, config...)
	values := map[string]int{"statement_timeout": 31_000, "lock_timeout": 32_000, "idle_in_transaction_session_timeout": 33_000,
		"idle_session_timeout": 34_000, "tcp_user_timeout": 35_000}
	if Major(db.Connect()) >= 17 {
		values["transaction_timeout"] = 36_000
	}
	for name, value := range values {
		db.Exec(fmt.Sprintf("ALTER DATABASE %s SET %s = %d", db.Config().Database, name, value))
	}
	return db, values
}

// want fails unless a session has these values of the named settings, or 0 where there is none.
func want(t *testing.T, conn *pgx.Conn, names, values map[string]int) {
	t.Helper()
	for name := range names {
		var got int
		if err := conn.QueryRow(t.Context(), "SELECT setting::integer FROM pg_settings WHERE name = $1", name).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != values[name] {
			t.Errorf("%s is %d, want %d", name, got, values[name])
		}
	}
}

func TestTheTimeoutsOfADatabaseBindNoSession(t *testing.T) {
	t.Parallel()
	servers.OnMajors(t, func(t *testing.T, config servers.PostgresConfig) {
		db, names := timeouts(t, config)
		want(t, db.Connect(), names, names)

		relay, err := Session(t.Context(), db.Config(), "a relay", Setting{"lock_timeout", "7s"})
		if err != nil {
			t.Fatal(err)
		}
		defer HangUp(relay)
		want(t, relay, names, map[string]int{"statement_timeout": 60_000, "lock_timeout": 7_000,
			"idle_in_transaction_session_timeout": 60_000})

		command := db.Connect()
		if err := Operate(t.Context(), command); err != nil {
			t.Fatal(err)
		}
		want(t, command, names, nil)
	})
}

// What a command sets behind a pooler of transactions would stay with other programs. One that needs another connection
// of a pool which has none is not kept from its work.
func TestACommandBehindAPoolerSetsOnlyASessionOfItsOwn(t *testing.T) {
	t.Parallel()
	db, names := timeouts(t)
	direct := db.Config()
	for _, c := range []struct {
		mode, size string
		unbound    bool
	}{
		{"session", "20", true}, {"session", "1", false}, {"transaction", "20", false}, {"transaction", "1", false},
	} {
		t.Run(c.mode+" "+c.size, func(t *testing.T) {
			t.Parallel()
			b := servers.OwnPgBouncer(t, servers.PgBouncerConfig{Server: net.JoinHostPort(direct.Host, strconv.Itoa(int(direct.Port))),
				Settings: map[string]string{"pool_mode": c.mode, "default_pool_size": c.size}})
			conn, err := pgx.Connect(t.Context(), b.URL(direct.Database))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if err := Operate(t.Context(), conn); err != nil {
				t.Fatal(err)
			}
			values := names
			if c.unbound {
				values = nil
			}
			want(t, conn, names, values)
		})
	}
}

// A pooler whose connections are out of step answers with the tag of another statement.
func TestAnAnswerToAnotherStatementIsAnError(t *testing.T) {
	t.Parallel()
	base, err := pgx.ParseConfig("postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	base.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			backend := pgproto3.NewBackend(server, server)
			_, err := backend.ReceiveStartupMessage()
			backend.Send(&pgproto3.AuthenticationOk{})
			for ; err == nil; _, err = backend.Receive() {
				backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
				_ = backend.Flush()
				backend.Send(&pgproto3.CommandComplete{CommandTag: []byte("BEGIN")})
			}
		}()
		return client, nil
	}
	if _, err := Session(t.Context(), base, "test"); err == nil || !strings.Contains(err.Error(), "another statement") {
		t.Errorf("got %v", err)
	}
}
