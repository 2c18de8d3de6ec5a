package polling

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgoutbox/outbox"
)

// sessionSettings is everything of a session that statements rely on. Roles and databases can carry
// defaults of their own, and some of them would make a reader wrong (serializable) or slow (a plan made
// while a segment was empty, a bitmap of a whole backlog).
//
// An asynchronous commit is made synchronous; stronger settings stay.
const sessionSettings = `SELECT
	set_config('search_path', 'pg_catalog', false),
	set_config('client_encoding', 'UTF8', false),
	set_config('default_transaction_isolation', 'read committed', false),
	set_config('default_transaction_read_only', 'off', false),
	set_config('default_transaction_deferrable', 'off', false),
	set_config('synchronous_commit', CASE current_setting('synchronous_commit')
		WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),
	set_config('timezone', 'UTC', false),
	set_config('datestyle', 'ISO', false),
	set_config('intervalstyle', 'postgres', false),
	set_config('statement_timeout', '60s', false),
	set_config('lock_timeout', '10s', false),
	set_config('idle_session_timeout', '0', false),
	set_config('idle_in_transaction_session_timeout', '60s', false),
	set_config('plan_cache_mode', 'force_generic_plan', false),
	set_config('jit', 'off', false),
	set_config('work_mem', '32MB', false),
	set_config('max_parallel_workers_per_gather', '0', false),
	set_config('enable_seqscan', 'off', false),
	set_config('enable_bitmapscan', 'off', false),
	set_config('enable_memoize', 'off', false),
	set_config('enable_indexscan', 'on', false),
	set_config('enable_indexonlyscan', 'on', false),
	set_config('enable_nestloop', 'on', false)`

// A connection can be dead without a word, and before there is a session no lease runs out that would end
// the wait. answerWithin is how long the server may take for what is quick, prepareWithin for what
// statement_timeout bounds.
const (
	answerWithin  = 10 * time.Second
	prepareWithin = 65 * time.Second
)

// connect opens a connection with the settings that this package's statements rely on.
func connect(ctx context.Context, base *pgx.ConnConfig, name string, log *slog.Logger) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	cfg := base.Copy()
	cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	cfg.StatementCacheCapacity = max(cfg.StatementCacheCapacity, 64)
	if cfg.RuntimeParams == nil {
		cfg.RuntimeParams = make(map[string]string)
	}
	cfg.RuntimeParams["application_name"] = applicationName(name)
	// Pages are megabytes: a larger buffer saves most of the reads from the socket.
	build := cfg.BuildFrontend
	cfg.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return build(bufio.NewReaderSize(r, 64<<10), w)
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if err := conn.PgConn().Exec(ctx, sessionSettings).Close(); err != nil {
		hangUp(conn)
		return nil, fmt.Errorf("prepare the connection: %w", err)
	}
	var pid uint32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		hangUp(conn)
		return nil, fmt.Errorf("prepare the connection: %w", err)
	}
	if pid != conn.PgConn().PID() {
		log.Warn("a connection pooler stands before the server; let it pool sessions, not transactions, or go past it: prepared statements and settings belong to a session", "host", cfg.Host, "port", cfg.Port)
	}
	return conn, nil
}

// applicationName fits what the server keeps, 63 bytes, so that it doesn't complain.
func applicationName(name string) string {
	all := "outbox relay " + name
	for i := range all {
		if i > 63-4 {
			return all[:i]
		}
	}
	return all
}

// hangUp closes a connection of which nothing is expected any more.
func hangUp(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), hangUpTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}

func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// permanent marks an error that no waiting cures, so that the relay ends and says so.
func permanent(format string, args ...any) error {
	return outbox.Permanent(fmt.Errorf(format, args...))
}
