package mapped

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay/internal/dial"
)

// ErrTransactionPooler means that a connection pooler hands out its server connections by transaction.
var ErrTransactionPooler = dial.ErrTransactionPooler

// settings are what statements rely on besides what dial sets. Rows are found one by one by their ids: to join a batch with
// all of a table costs more the longer the backlog is. Plans are made for the values at hand, because a list of ids
// is searched quickly only when the planner knows it. The time zone and the search path are left as they
// are: columns without a zone mean what the role's, the database's or the server's setting makes of them,
// as for the programs that write them.
//
// The server ends a transaction that is silent for as long as the lease, so that what a relay had locked is free although
// nobody has told the server that its machine is gone; awaitLock does the same for sessions.
func (s *Source) settings() []dial.Setting {
	return []dial.Setting{
		{Name: "idle_in_transaction_session_timeout", Value: s.silence()},
		{Name: "plan_cache_mode", Value: "force_custom_plan"},
		{Name: "enable_seqscan", Value: "off"},
		{Name: "enable_hashjoin", Value: "off"},
		{Name: "enable_mergejoin", Value: "off"},
		{Name: "enable_bitmapscan", Value: "off"},
	}
}

// silence is the lease as a setting has it.
func (s *Source) silence() string { return strconv.FormatInt(s.cfg.Lease.Milliseconds(), 10) }

// connect opens a connection to a server that can be written to, with the settings of a session. Through a pooler of
// transactions they would be anybody's: then nothing is set, and pooled is ErrTransactionPooler.
func (s *Source) connect(ctx context.Context, pooled *error) (conn *pgx.Conn, err error) {
	cfg := s.conn.Copy()
	// Named statements would not survive a pooler, and their plans would not be kept anyway.
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
