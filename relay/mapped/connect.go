package mapped

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay/internal/owner"
)

// ErrTransactionPooler means that a connection pooler hands out its server connections by transaction.
var ErrTransactionPooler = dial.ErrTransactionPooler

// settings are the settings that statements rely on besides those of package dial. Rows are looked up one by one by
// their ids, because joining a batch with the whole table costs more the longer the backlog is. Plans are made for the
// actual values, because the planner chooses an index for a list of ids only if it knows the list. The time zone and
// the search path stay as the role, the database or the server sets them, so a column without a time zone means the
// same here as in the programs that write it.
//
// The server ends a transaction that is silent for as long as the lease. So the locks of a relay whose machine is gone
// become free although the server was not told. awaitLock does the same for sessions.
//
// An ALTER TABLE waits for the open transactions of mapping.SkipLocked, and all later statements wait behind it. One of
// these may be the relay's own, without which it can't end the transaction: the server sees no deadlock. So no
// statement waits for long, and the session ends.
func (s *Source) settings() []dial.Setting {
	return []dial.Setting{
		{Name: "lock_timeout", Value: strconv.FormatInt(max(s.cfg.Lease/3, 500*time.Millisecond).Milliseconds(), 10)},
		{Name: "idle_in_transaction_session_timeout", Value: s.silence()},
		{Name: "plan_cache_mode", Value: "force_custom_plan"},
		{Name: "enable_seqscan", Value: "off"},
		{Name: "enable_hashjoin", Value: "off"},
		{Name: "enable_mergejoin", Value: "off"},
		{Name: "enable_bitmapscan", Value: "off"},
	}
}

// silence is the lease as the value of a setting.
func (s *Source) silence() string { return strconv.FormatInt(s.cfg.Lease.Milliseconds(), 10) }

// connect opens a connection to a server that can be written to, with the settings of a session. A pooler in
// transaction mode would pass the settings on to other clients. Then none is set, and pooled is ErrTransactionPooler.
func (s *Source) connect(ctx context.Context, pooled *error) (conn *pgx.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	cfg := s.conn.Copy()
	// Named statements don't survive a pooler, and their plans would not be kept anyway.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	name := "outbox relay " + s.owner
	if *pooled == nil {
		if conn, err = dial.Session(ctx, cfg, name, s.settings()...); errors.Is(err, ErrTransactionPooler) {
			*pooled = err
		}
	}
	if *pooled != nil {
		conn, err = dial.Connect(ctx, cfg, name)
	}
	if err != nil {
		return nil, err
	}
	var standby bool
	err = conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&standby)
	switch {
	case err != nil:
		err = fmt.Errorf("prepare the connection: %w", err)
	case standby:
		err = outbox.Permanent(errors.New("the server is a hot standby, where rows can't be marked: connect to the primary " +
			"(with several hosts in the address, add target_session_attrs=read-write)"))
	}
	if err != nil {
		dial.HangUp(conn)
		return nil, err
	}
	return conn, nil
}

// awaitLock waits for an advisory lock of the session: when the session that has it ends, the next in line has it at
// once. Then the server ends the session when it is silent for as long as the lease.
func (s *Source) awaitLock(ctx context.Context, conn *pgx.Conn, key, what string) error {
	lock := owner.Lock{Key: key}
	ask := lock.Try
	for {
		asking, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
		got, err := ask(asking, conn, s.cfg.Lease)
		cancel()
		if err != nil || got {
			return err
		}
		s.reportWait(what)
		ask, what = lock.Wait, ""
	}
}

// awaitPresence takes the lock that all relays of the table share.
func (s *Source) awaitPresence(ctx context.Context, conn *pgx.Conn, lock string) error {
	return s.await(ctx, "", func() (got bool, err error) {
		err = conn.QueryRow(ctx, "SELECT pg_try_advisory_lock_shared("+lock+")").Scan(&got)
		return got, err
	})
}

// await asks until the session has got what it needs. It logs once what it waits for, if that takes a while.
func (s *Source) await(ctx context.Context, what string, ask func() (got bool, err error), more ...any) error {
	for waited := false; ; waited = true {
		if got, err := ask(); err != nil || got {
			return err
		}
		if !waited {
			s.reportWait(what, more...)
		}
		if err := dial.Pause(ctx, min(100*time.Millisecond, s.cfg.Lease/3)); err != nil {
			return err
		}
	}
}

// reportWait logs what the session waits for, unless that is of no interest.
func (s *Source) reportWait(what string, more ...any) {
	if what != "" {
		s.cfg.Logger.Info("waiting: "+what, append([]any{"relay", s.owner, "table", s.mapping.Table}, more...)...)
	}
}
