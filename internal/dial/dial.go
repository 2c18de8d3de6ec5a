// Package dial opens the database sessions of relays, and prepares those of commands.
package dial

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgoutbox/outbox"
)

// ErrTransactionPooler means that a connection pooler hands out its server connections by transaction.
var ErrTransactionPooler = errors.New("a pooler in transaction mode stands before the server")

// Setting is a parameter of a session.
type Setting struct{ Name, Value string }

// settings are the settings that all sessions rely on. Roles and databases can have defaults of their own, and some of
// them would make a reader wrong (serializable) or slow.
//
// Row-level security hides rows silently. With row_security off, the server reports an error instead.
//
// If standbys are synchronous, a commit that would wait for no standby is made to wait for them: otherwise a relay
// could publish what a failover takes back. Without such standbys it waits for the local disk.
//
// That a commit hasn't waited for a standby is told by a warning, which a role's client_min_messages may hide.
//
// The text of a value is the same whoever reads it, by whatever way: a key's text decides its lane and its partition.
// So is that of a type and of an expression in the catalogue.
// DateStyle ISO leaves the order of day and month, which only matters for what triggers read. The time zone and the
// search path stay as they are, because they are what the programs that write a table have.
//
// Timeouts that a role or a database has are meant for its other programs. transaction_timeout exists since PostgreSQL
// 17; to set an unknown parameter is an error.
const settings = `
	set_config('row_security', 'off', false),
	set_config('client_encoding', 'UTF8', false),
	set_config('client_min_messages', 'notice', false),
	set_config('standard_conforming_strings', 'on', false),
	set_config('quote_all_identifiers', 'off', false),
	set_config('DateStyle', 'ISO', false),
	set_config('IntervalStyle', 'postgres', false),
	set_config('bytea_output', 'hex', false),
	set_config('extra_float_digits', '1', false),
	set_config('lc_monetary', 'C', false),
	set_config('xmloption', 'content', false),
	set_config('default_transaction_isolation', 'read committed', false),
	set_config('default_transaction_read_only', 'off', false),
	set_config('default_transaction_deferrable', 'off', false),
	set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
		THEN 'on' ELSE current_setting('synchronous_commit') END, false),
	set_config('idle_session_timeout', '0', false),
	set_config('tcp_user_timeout', '0', false),
	CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
		THEN set_config('transaction_timeout', '0', false) END`

// relays are the settings of the sessions in which relays read and settle: their waits are bounded.
var relays = []Setting{
	{"statement_timeout", "60s"},
	{"lock_timeout", "10s"},
	{"idle_in_transaction_session_timeout", "60s"},
	{"jit", "off"},
	{"max_parallel_workers_per_gather", "0"},
}

// unbounded are those of the other sessions, whose programs bound their statements themselves.
var unbounded = []Setting{
	{"statement_timeout", "0"},
	{"lock_timeout", "0"},
	{"idle_in_transaction_session_timeout", "0"},
}

// HangUpTimeout bounds the time that closing a connection takes.
const HangUpTimeout = 2 * time.Second

// A connection can die silently, and before a session exists no lease expires that would end the wait. AnswerWithin is
// how long the server may take for quick statements, PrepareWithin for those that statement_timeout bounds.
const (
	AnswerWithin  = 10 * time.Second
	PrepareWithin = 65 * time.Second
)

// Major returns the server's major version, 0 if it isn't known.
func Major(conn *pgx.Conn) (version int) {
	_, _ = fmt.Sscan(conn.PgConn().ParameterStatus("server_version"), &version) // "18.6 (Debian ...)", "19beta1"
	return version
}

// Connect opens a connection and changes no setting of the session. The name appears in pg_stat_activity.
func Connect(ctx context.Context, base *pgx.ConnConfig, name string) (*pgx.Conn, error) {
	// Pages are megabytes: a larger buffer saves most of the reads from the socket.
	return connect(ctx, base, name, 64<<10)
}

func connect(ctx context.Context, base *pgx.ConnConfig, name string, buffer int) (*pgx.Conn, error) {
	cfg := base.Copy()
	if cfg.RuntimeParams == nil {
		cfg.RuntimeParams = make(map[string]string)
	}
	cfg.RuntimeParams["application_name"] = ApplicationName(name)
	cfg.RuntimeParams["client_encoding"] = "UTF8" // the default is the database's encoding
	build := cfg.BuildFrontend
	cfg.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return build(bufio.NewReaderSize(r, buffer), w)
	}
	say := cfg.OnNotice
	cfg.OnNotice = func(conn *pgconn.PgConn, n *pgconn.Notice) {
		if n.Routine == "SyncRepWaitForLSN" { // the routine's name, because the text is in the server's language
			conn.CustomData()[notReplicated] = true
		}
		if say != nil {
			say(conn, n)
		}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// Write runs one statement that writes, on a connection of [Connect], which is to be closed after an error. The
// session may belong to a pooler and have the role's settings, so the transaction has modes and timeouts of its own:
// by default it might be one that only reads. It is one round trip, so that no session is idle in a transaction.
func Write(ctx context.Context, conn *pgx.Conn, sql string, args ...any) error {
	b := &pgx.Batch{}
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE NOT DEFERRABLE")
	b.Queue("SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true)")
	b.Queue(sql, args...)
	b.Queue("COMMIT")
	return conn.SendBatch(ctx, b).Close()
}

const (
	notReplicated = "outbox: a commit has not waited for the synchronous standby"
	serverProcess = "outbox: the process of the server"
)

// PID is the server process behind a connection that [Session] has opened. Poolers announce process numbers of their
// own.
func PID(conn *pgx.Conn) uint32 {
	if at, ok := conn.PgConn().CustomData()[serverProcess].(uint32); ok {
		return at
	}
	return conn.PgConn().PID()
}

// Replicated returns an error if a commit on conn stopped waiting for the synchronous standby because somebody
// cancelled the wait. The commit has happened, and nothing may be concluded from it.
func Replicated(conn *pgx.Conn) error {
	if conn.PgConn().CustomData()[notReplicated] == nil {
		return nil
	}
	return errors.New("a commit's wait for the synchronous standby was cancelled: a failover may lose the commit, so it is repeated")
}

// Session opens a connection to a server process of its own, with the settings of all relays and more. If a pooler
// gives each transaction another process, Session returns ErrTransactionPooler, marked by outbox.Permanent, before it
// changes any setting: settings would remain in the sessions of other programs.
func Session(ctx context.Context, base *pgx.ConnConfig, name string, more ...Setting) (_ *pgx.Conn, err error) {
	return session(ctx, base, name, 64<<10, more)
}

// SmallSession is Session for a connection that carries little and lasts: it takes less memory.
func SmallSession(ctx context.Context, base *pgx.ConnConfig, name string, more ...Setting) (_ *pgx.Conn, err error) {
	return session(ctx, base, name, 4<<10, more)
}

func session(ctx context.Context, base *pgx.ConnConfig, name string, buffer int, more []Setting) (_ *pgx.Conn, err error) {
	conn, err := connect(ctx, base, name, buffer)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			HangUp(conn)
		}
	}()
	// If the process that answers has the announced number, there is no pooler that we would have to detect.
	at, err := pid(ctx, conn)
	if err != nil {
		return nil, err
	}
	if at != conn.PgConn().PID() {
		other, err := Connect(ctx, base, name)
		if err != nil {
			return nil, err
		}
		defer HangUp(other)
		if err := RefusePooler(ctx, conn, other); err != nil {
			return nil, err
		}
	}
	conn.PgConn().CustomData()[serverProcess] = at
	if err := prepare(ctx, conn.PgConn(), append(slices.Clone(relays), more...)); err != nil {
		return nil, err
	}
	return conn, nil
}

// Operate prepares a new connection of a command, or of another program for operators: its statements last as long as
// the program lets them, whatever the role has. Behind a pooler, nothing is set unless the session is certainly the
// caller's own.
func Operate(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, AnswerWithin)
	defer cancel()
	at, err := pid(ctx, conn)
	if err != nil {
		return err
	}
	if at == conn.PgConn().PID() {
		return Unbound(ctx, conn.PgConn())
	}
	looking, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	other, err := pgx.ConnectConfig(looking, conn.Config())
	if err == nil {
		defer HangUp(other)
		err = RefusePooler(looking, other, conn) // in this order, the one that may have to wait for the pool is other
	}
	switch {
	case err == nil:
		return Unbound(ctx, conn.PgConn())
	case conn.IsClosed():
		return err
	}
	return nil
}

// lookWithin bounds how long a command looks for a pooler: if the pool is in use, a second connection waits for it.
const lookWithin = 3 * time.Second

// Unbound applies the settings of [Operate]. The session must be the caller's own.
func Unbound(ctx context.Context, conn *pgconn.PgConn) error { return prepare(ctx, conn, unbounded) }

func prepare(ctx context.Context, conn *pgconn.PgConn, more []Setting) error {
	sql := "SELECT" + settings
	for _, s := range more {
		sql += fmt.Sprintf(",\n\tset_config('%s', '%s', false)", s.Name, s.Value)
	}
	if err := conn.Exec(ctx, sql).Close(); err != nil {
		return fmt.Errorf("prepare the connection: %w", err)
	}
	return nil
}

// RefusePooler returns ErrTransactionPooler, marked by outbox.Permanent, if two connections that are both open reach
// the same server process, or if one connection reaches different processes. The locks, settings and prepared
// statements of a session would then be shared with other programs. RefusePooler leaves nothing behind in any session.
func RefusePooler(ctx context.Context, one, other *pgx.Conn) error {
	seen := make(map[uint32]bool)
	for range 3 {
		for range 2 { // twice, for a pool that uses its connections in turn
			mine, err := pid(ctx, one)
			if err != nil {
				return err
			}
			seen[mine] = true
		}
		// A transaction occupies a server connection. A pool gives out the one that was used last.
		tx, err := other.Begin(ctx)
		if err != nil {
			return fmt.Errorf("look for a pooler: %w", err)
		}
		theirs, err := pid(ctx, other)
		var meanwhile uint32
		if err == nil {
			meanwhile, err = pid(ctx, one)
		}
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), HangUpTimeout)
		rollbackErr := tx.Rollback(closing) // a failure would close the connection, which may be the caller's only one
		cancel()
		if err == nil {
			err = rollbackErr
		}
		if err != nil {
			return fmt.Errorf("look for a pooler: %w", err)
		}
		seen[meanwhile] = true
		if seen[theirs] || len(seen) > 1 {
			return outbox.Permanent(fmt.Errorf("%w: statements of one session go to several server processes, and "+
				"what a relay sets or locks in its session would stay with those of other programs: give it the "+
				"address of PostgreSQL itself, or of a pool in session mode", ErrTransactionPooler))
		}
	}
	return nil
}

// pid uses the simple protocol, because a prepared statement would remain in the session.
func pid(ctx context.Context, conn *pgx.Conn) (uint32, error) {
	results, err := conn.PgConn().Exec(ctx, "SELECT pg_backend_pid()").ReadAll()
	if err == nil && (len(results) != 1 || len(results[0].Rows) != 1) {
		err = errors.New("the answer is to another statement") // a pooler's connection may be out of step
	}
	if err != nil {
		return 0, fmt.Errorf("look for a pooler: %w", err)
	}
	n, err := strconv.ParseUint(string(results[0].Rows[0][0]), 10, 32)
	return uint32(n), err
}

// ApplicationName cuts a name to 63 bytes, the length that the server keeps; the server warns about longer ones.
func ApplicationName(name string) string {
	for i := range name {
		if i > 63-4 {
			return name[:i]
		}
	}
	return name
}

// HangUp closes a connection that is no longer needed. conn may be nil.
func HangUp(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), HangUpTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}

// Permanent returns an error that waiting doesn't cure, so that the relay ends with it.
func Permanent(format string, args ...any) error {
	return outbox.Permanent(fmt.Errorf(format, args...))
}

// Pause waits for d, or returns the error of ctx when ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
