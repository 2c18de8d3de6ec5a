package mapped

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgoutbox/outbox"
)

// sessionSettings is what statements rely on. Rows are found one by one by their ids: to join a batch with
// all of a table costs more the longer the backlog is. Plans are made for the values at hand, because a list of ids
// is searched quickly only when the planner knows it. The time zone and the search path are left as they
// are: columns without a zone mean what the role's, the database's or the server's setting makes of them,
// as for the programs that write them.
//
// The server ends a transaction that is silent for as long as the lease ($1, milliseconds), so that what a
// relay had locked is free although nobody has told the server that its machine is gone; awaitLock does the same for sessions.
const sessionSettings = `SELECT
	set_config('client_encoding', 'UTF8', false),
	set_config('default_transaction_isolation', 'read committed', false),
	set_config('default_transaction_read_only', 'off', false),
	set_config('default_transaction_deferrable', 'off', false),
	set_config('synchronous_commit', CASE current_setting('synchronous_commit')
		WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),
	set_config('statement_timeout', '60s', false),
	set_config('lock_timeout', '10s', false),
	set_config('idle_in_transaction_session_timeout', $1::text, false),
	set_config('plan_cache_mode', 'force_custom_plan', false),
	set_config('jit', 'off', false),
	set_config('max_parallel_workers_per_gather', '0', false),
	set_config('enable_seqscan', 'off', false),
	set_config('enable_hashjoin', 'off', false),
	set_config('enable_mergejoin', 'off', false),
	set_config('enable_bitmapscan', 'off', false)`

// connect opens a connection with the settings of a session.
func (s *source) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.prepare(ctx, conn); err != nil {
		hangUp(conn)
		return nil, err
	}
	return conn, nil
}

// prepare makes the settings of a session. They would be anybody's behind a pooler of transactions.
func (s *source) prepare(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, sessionSettings, s.silence()); err != nil {
		return fmt.Errorf("prepare the connection: %w", err)
	}
	return nil
}

// silence is the lease as a setting has it.
func (s *source) silence() string { return strconv.FormatInt(s.cfg.Lease.Milliseconds(), 10) }

// dial opens a connection to a server that can be written to.
func (s *source) dial(ctx context.Context) (*pgx.Conn, error) {
	cfg := s.conn.Copy()
	// Named statements would not survive a pooler, and their plans would not be kept anyway.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	if cfg.RuntimeParams == nil {
		cfg.RuntimeParams = make(map[string]string)
	}
	cfg.RuntimeParams["application_name"] = applicationName(s.owner)
	// Pages are large: a larger buffer saves most of the reads from the socket.
	build := cfg.BuildFrontend
	cfg.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return build(bufio.NewReaderSize(r, 64<<10), w)
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	var standby bool
	if err := conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&standby); err != nil {
		hangUp(conn)
		return nil, fmt.Errorf("prepare the connection: %w", err)
	}
	if standby {
		hangUp(conn)
		return nil, outbox.Permanent(errors.New("the server is a hot standby, where rows can't be marked: connect to the primary " +
			"(with several hosts in the address, add target_session_attrs=read-write)"))
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

// ErrTransactionPooler says that a connection pooler hands out its server connections by transaction.
var ErrTransactionPooler = errors.New("a pooler in transaction mode stands before the server")

// refusePooler returns ErrTransactionPooler when two connections that are both open have the same process
// of the server behind them, or one has another each time. Locks of a session would then be anybody's.
func refusePooler(ctx context.Context, one, other *pgx.Conn) error {
	pid := func(c *pgx.Conn) (p int, err error) {
		err = c.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&p)
		return p, err
	}
	seen := make(map[int]bool)
	for range 3 {
		for range 2 { // one after the other, for a pool that goes round
			mine, err := pid(one)
			if err != nil {
				return fmt.Errorf("look for a pooler: %w", err)
			}
			seen[mine] = true
		}
		// A transaction takes a server connection for itself; the one last used is the first to be given.
		tx, err := other.Begin(ctx)
		if err != nil {
			return fmt.Errorf("look for a pooler: %w", err)
		}
		theirs, err := pid(other)
		var meanwhile int
		if err == nil {
			meanwhile, err = pid(one)
		}
		if rollbackErr := tx.Rollback(ctx); err == nil {
			err = rollbackErr
		}
		if err != nil {
			return fmt.Errorf("look for a pooler: %w", err)
		}
		seen[meanwhile] = true
		if seen[theirs] || len(seen) > 1 {
			return outbox.Permanent(fmt.Errorf("%w: this strategy holds a lock for as long as its session lasts, and statements of one session go to "+
				"several server processes: connect to PostgreSQL directly, or to a pool in session mode", ErrTransactionPooler))
		}
	}
	return nil
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

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
