package replication

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/wal"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/schema"
)

// Source reads a destination's messages from the write-ahead log, in the order of commits: rows inserted into
// outbox.messages, and logical messages written by outbox.Writer.Emit.
//
// Acquire may be called again after a session was closed. There can't be two sessions at once.
type Source struct {
	conn        *pgx.ConnConfig
	destination string
	cfg         Config
	table       *polling.Snapshot
}

var (
	_ relay.Reporting = (*Source)(nil)
	_ relay.Coupled   = (*session)(nil)
)

// New returns a source for a destination. It reports all faults of cfg together and doesn't connect yet. conn is
// copied. It must lead to the primary itself, as a role with the attribute REPLICATION and the rights that
// schema.Grants lists for a relay.
func New(conn *pgx.ConnConfig, destination string, cfg Config) (*Source, error) {
	cfg, err := cfg.withDefaults(conn, destination)
	if err != nil {
		return nil, err
	}
	table, err := polling.NewSnapshot(conn, destination, cfg.Table)
	if err != nil {
		return nil, err
	}
	return &Source{conn: conn.Copy(), destination: destination, cfg: cfg, table: table}, nil
}

// Report writes the relay's state to the cursor.
func (s *Source) Report(state relay.State, err error) { s.table.Report(state, err) }

// Acquire waits until this relay has the destination's lease, and returns a session that continues where the last
// owner's stored position is: in the log if its slot can be trusted, else in the table until there is a new slot.
//
// Errors that waiting doesn't cure are marked by outbox.Permanent: a server or role that can't stream, a pooler, a slot
// or a publication that is missing and can't be created or is another's, and whatever the snapshot strategy refuses.
func (s *Source) Acquire(ctx context.Context) (relay.Session, error) {
	// A server that has no connection left for a second Run is no reason to call the first one broken.
	if err := s.ready(ctx); err != nil && !s.table.Active() {
		return nil, err
	}
	owned, err := s.table.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	table, ok := polling.TableOf(owned)
	if !ok {
		return owned, nil // it joins earlier shard groups into one, and then ends
	}
	session, err := s.start(ctx, table)
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), dial.HangUpTimeout)
		defer cancel()
		closeErr := table.Close(closing)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if errors.Is(closeErr, relay.ErrLeaseLost) {
			return nil, relay.ErrLeaseLost
		}
		return nil, err
	}
	return session, nil
}

func (s *Source) server() wal.Server { return wal.Server{Conn: s.conn, Name: s.destination} }

// ready checks, before the wait for the lease, that the server can be streamed from.
func (s *Source) ready(ctx context.Context) error {
	stream, err := s.server().ConnectWAL(ctx)
	if err != nil {
		return err
	}
	stream.HangUp()
	conn, err := s.server().Connect(ctx)
	if err != nil {
		return err
	}
	defer dial.HangUp(conn)
	return s.preflight(ctx, conn)
}

// start decides where to continue.
func (s *Source) start(ctx context.Context, table *polling.Table) (*session, error) {
	session := newSession(s, table)
	conn, err := s.server().Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer dial.HangUp(conn)
	if err := makePlace(ctx, conn, s.destination, s.cfg.Slot, s.cfg.Publication); err != nil {
		return nil, err
	}
	p, err := readPlace(ctx, conn, s.destination)
	if err != nil {
		return nil, err
	}
	if session.statusInterval, err = wal.StatusInterval(ctx, conn); err != nil {
		return nil, err
	}
	if p.slot != s.cfg.Slot {
		session.formerSlot = p.slot
	}
	if err := p.foreign(); err != nil {
		return nil, err
	}
	session.mode = p.mode
	cause := p.lost(s.cfg.Slot, s.cfg.Publication)
	if cause == nil {
		err = session.resume(ctx, conn, &p)
	} else {
		err = session.fallBack(ctx, conn, &p, cause)
	}
	if err != nil {
		return nil, err
	}
	session.keep()
	return session, nil
}

// resume streams from the stored position.
func (s *session) resume(ctx context.Context, conn *pgx.Conn, p *place) error {
	var now string
	if err := conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text, "+standbysSQL).Scan(&now, &s.standbys); err != nil {
		return fmt.Errorf("ask where the log is: %w", err)
	}
	end, err := wal.ParseLSN(now)
	if err != nil {
		return err
	}
	prev, _ := s.table.Prev()
	seen, err := cursors.Parse(prev)
	if err != nil {
		return err
	}
	s.version = p.version
	s.progress, s.stored = wal.NewProgress(p.stored), p.stored
	s.seen, s.seenUntil = &seen, end
	s.end, s.fallback.covers = end, p.covers
	s.streaming = true
	if err := s.stream(ctx, conn); err != nil {
		return err
	}
	s.log().Info("reading the write-ahead log", "slot", p.slot, "position", p.stored.Position.String())
	return nil
}

// fallBack reads the table from the cursor until there is a new slot.
func (s *session) fallBack(ctx context.Context, conn *pgx.Conn, p *place, cause error) error {
	if s.mode == modeReplication {
		if !p.there.slot {
			if err := wal.RefuseFull(ctx, conn); err != nil {
				return err
			}
		}
		// If the log was read before, the table is read until the publication is as it has to be.
		_, err := Publication(ctx, conn, s.source.cfg.Publication)
		if err != nil && (errors.Is(cause, errNew) || !outbox.IsPermanent(err)) {
			return err
		}
	}
	reason := ""
	if !errors.Is(cause, errNew) {
		reason = cause.Error()
		s.log().Error("the replication slot can't be read on: the table is read from the cursor on until there is a new one. "+
			"Messages that were emitted without a row and not read are lost; some others may come twice",
			"slot", p.slot, "position", p.stored.Position.String(), "cause", reason)
	}
	// From here on no session uses the old position.
	err := s.table.Write(ctx, func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		return s.distrust(ctx, conn, reason)
	})
	if err == nil && s.mode == modeSnapshot {
		s.log().Warn("reading the table, to which the destination was handed over; for the log run: outbox handover --destination " +
			s.source.destination + " --to replication")
	}
	if err == nil && s.mode == modeSnapshot && p.there.slot {
		err = s.dropSlot(ctx, conn) // a predecessor that switched to the table had no time to drop it
	}
	return err
}

// distrust removes the position, and reports whether this session has the lease.
func (s *session) distrust(ctx context.Context, conn *pgx.Conn, reason string) (owned bool, err error) {
	tag, err := conn.Exec(ctx, distrustSQL, s.source.destination, s.table.Epoch(), s.ttl().Microseconds(),
		s.source.cfg.Slot, s.source.cfg.Publication, reason)
	return tag.RowsAffected() == 1, err
}

// distrustSQL removes the position.
const distrustSQL = `
WITH owned AS (
	UPDATE outbox.cursors SET lease_until = clock_timestamp() + $3::bigint * interval '1 microsecond'
	WHERE destination = $1 AND shard_group = 0 AND epoch = $2 RETURNING destination
)
UPDATE outbox.slots s SET position = NULL, partial_lsn = NULL, partial_count = 0, fallback = NULL, slot = $4, publication = $5,
	fallback_lsn = NULL, lost_at = CASE WHEN $6 = '' THEN s.lost_at ELSE clock_timestamp() END,
	lost_reason = CASE WHEN $6 = '' THEN s.lost_reason ELSE $6 END, updated_at = clock_timestamp()
FROM owned WHERE s.destination = owned.destination`

// session owns a destination. At first it reads the table, unless it can resume, and then the log.
//
// Next runs in one goroutine and Settle in another. A third (keep) stores and confirms progress that needs no
// settlement. Locks: the table's (taken by table.Write), then mu.
type session struct {
	source *Source
	table  *polling.Table

	formerSlot     string
	statusInterval time.Duration
	drawing        cursors.SequenceWatch // used under the table's link

	mu        sync.Mutex
	mode      mode   // what the operator wants
	standbys  bool   // commits wait for synchronous standbys
	streaming bool   // the log is read, not the table
	version   string // of the publication, that the log is read through
	wal       *wal.Stream
	progress  *wal.Progress
	stored    wal.Mark // what the database knows, and what the server is told
	end       wal.LSN  // of the log, when it was last asked for

	// unseen are transactions whose messages were delivered and that no snapshot has seen yet.
	unseen []uint64

	fallback fallback

	settled chan struct{}  // a settlement came
	ready   chan boundary  // of the slot, or of the way back, in preparation
	helpers sync.WaitGroup // the goroutine that prepares it
	ctx     context.Context
	cancel  context.CancelFunc

	// Only Next uses the rest.
	reader
}

func newSession(source *Source, table *polling.Table) *session {
	s := &session{source: source, table: table, settled: make(chan struct{}, 1), ready: make(chan boundary, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.reader.init()
	return s
}

// preflight refuses what waiting doesn't cure.
func (s *Source) preflight(ctx context.Context, conn *pgx.Conn) error {
	if err := wal.RefuseLevel(ctx, conn); err != nil {
		return err
	}
	if !s.cfg.Emitted {
		return nil
	}
	revoke, err := schema.EmitsOpen(ctx, conn)
	if err != nil {
		return err
	}
	if revoke != "" {
		s.cfg.Table.Logger.Warn("every role of this database can publish: emitted messages are delivered, and PUBLIC "+
			"may execute pg_logical_emit_message",
			"destination", s.destination, "next", "a superuser runs, in this database: "+
				revoke+" and what outbox migrate grants --emitter prints for those who are to")
	}
	return nil
}
