// Package registration has the names of the relays that run: by its name, a relay that restarts has its leases at once.
package registration

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/lease"
	"github.com/pgoutbox/outbox/relay/internal/line"
	"github.com/pgoutbox/outbox/relay/internal/owner"
	"github.com/pgoutbox/outbox/relay/internal/states"
	"github.com/pgoutbox/outbox/schema"
)

// ErrNamesake means that another relay runs under the same name. Each would take the other's leases for its own.
var ErrNamesake = errors.New("another relay has this name")

// Registration records this process under a name among the running relays. By the name, a relay that restarts takes its
// leases back at once; the registration ensures that no other relay uses the name at the same time. All sources of a
// process share one, and its connection: while nothing happens in the database, it is the only one of the relay.
type Registration struct {
	conn     *pgx.ConnConfig
	name     string
	instance string
	host     string
	cfg      Config
	states   *states.Writer // of all its sources
	line     *line.Line     // what the name's row identifies

	mu    sync.Mutex
	err   error // why the name may not be used at present; nil while registered
	inUse map[string]bool

	stop    context.CancelFunc
	stopped chan struct{}
}

// Config tunes a [Registration]. The zero value means the stated defaults.
type Config struct {
	// Version of the program, for people. Default "unknown".
	Version string

	// Lease is how long a relay whose database session lives may be silent before another relay takes its name. The
	// relay renews it every third of that time. It should equal the Lease of the sources. At least 100 ms. Default 3 s.
	Lease time.Duration

	// Logger reports the loss of the name or of its connection; nil: slog.Default.
	Logger *slog.Logger
}

// Register takes the name for this process. It waits at most one lease to tell a dead predecessor from a live namesake.
// ErrNamesake, marked by outbox.Permanent, names the host and process of the namesake. The registration has a
// connection until Close, which it lends to the parts of the relay.
func Register(ctx context.Context, conn *pgx.ConnConfig, name string, cfg Config) (*Registration, error) {
	var faults settings.Faults
	faults.Need(conn != nil, "", "there is no connection config")
	faults.Need(name != "", "", "the relay has no name")
	settings.Default(&cfg.Version, "unknown")
	settings.AtLeast(&faults, "Lease", &cfg.Lease, owner.Default, owner.Min)
	if err := faults.Err(); err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	cfg.Logger = settings.Logger(cfg.Logger)
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	var instance outbox.ID
	_, _ = rand.Read(instance[:]) // it never fails
	r := &Registration{conn: conn.Copy(), name: name, instance: instance.String(), host: host, cfg: cfg, line: line.New(),
		states: states.New(conn, name, cfg.Logger), inUse: make(map[string]bool), stopped: make(chan struct{})}
	r.line.Configure(r.conn)
	first, err := r.register(ctx)
	if err != nil {
		return nil, fmt.Errorf("register relay %q: %w", name, err)
	}
	beating, stop := context.WithCancel(context.Background())
	r.stop = stop
	go r.run(beating, r.line.Open(first))
	return r, nil
}

// Name is the relay's name, which owns the leases of its sources.
func (r *Registration) Name() string { return r.name }

// States writes the states of all its sources.
func (r *Registration) States() *states.Writer { return r.states }

// Lend runs f with the relay's connection to the database, for a short statement: leases are renewed on it, and
// messages of a database where little happens are read and settled. If f's own context ends while a statement of it
// runs, the connection is lost, and the leases with it. An error of f is its own.
func (r *Registration) Lend(ctx context.Context, f func(*pgx.Conn) error) error {
	return r.line.Do(ctx, f)
}

// Line is the connection that [Registration.Lend] lends.
func (r *Registration) Line() *line.Line { return r.line }

// AllGroups stands for a destination as a whole.
const AllGroups = -1

// Use prevents two sources of this process from taking each other's lease.
func (r *Registration) Use(destination string, group int) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	what := fmt.Sprintf("%d %s", group, destination)
	if r.inUse[what] {
		return nil, dial.Permanent("shard group %d of destination %q is %w, and a Registration of its own",
			group, destination, relay.ErrActive)
	}
	r.inUse[what] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.inUse, what)
	}, nil
}

func (r *Registration) set(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// Close releases the name. Close the sessions first.
func (r *Registration) Close() {
	r.stop()
	<-r.stopped
	r.states.Close()
}

// register connects and takes the name. The name's row then identifies this connection, by which other relays find out
// whether this process lives.
func (r *Registration) register(ctx context.Context) (_ *pgx.Conn, err error) {
	conn, err := lease.ConnectSmall(ctx, r.conn, r.name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			dial.HangUp(conn)
		}
	}()
	if err := cursors.RefuseStandby(ctx, conn); err != nil {
		return nil, err
	}
	if err := lease.Refused(schema.Check(ctx, conn)); err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, `SELECT set_config('statement_timeout', $1, false), set_config('lock_timeout', '5s', false),
		set_config('idle_in_transaction_session_timeout', $2, false), set_config('idle_session_timeout', $3, false)`,
		milliseconds(dial.AnswerWithin), milliseconds(r.cfg.Lease), milliseconds(line.Silence)); err != nil {
		return nil, fmt.Errorf("bound the statements: %w", err)
	}
	var deadline time.Time
	var before *predecessor
	for {
		taken, err := r.take(ctx, conn, before)
		if err != nil || taken {
			return conn, err
		}
		found, err := r.find(ctx, conn)
		if err != nil {
			return nil, err
		}
		switch {
		case found == nil:
			before = nil
			continue // gone: take it
		case before == nil || found.instance != before.instance:
			deadline = time.Now().Add(max(r.cfg.Lease, found.silence))
			found.first = found.heartbeat
		default:
			found.first = before.first
		}
		before = found
		if before.heartbeat != before.first {
			return nil, dial.Permanent("%w: %q runs on host %s (process %d); give this one another --name",
				ErrNamesake, r.name, before.host, before.pid)
		}
		// Its database session lives. Either the relay lives too, and renews its heartbeat within the time that the row
		// names, or it was stopped or cut off; then its leases have expired by then, and their epochs keep it out.
		before.silent = time.Now().After(deadline)
		if before.silent {
			continue
		}
		if err := lease.Pause(ctx, r.cfg.Lease/60); err != nil {
			return nil, err
		}
	}
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

// predecessor is another instance that has the name.
type predecessor struct {
	instance  string
	host      string
	pid       int
	heartbeat time.Time
	silence   time.Duration // as long may be between two of its heartbeats
	first     time.Time     // its heartbeat when it was first seen
	silent    bool          // it has not changed for a lease
}

// takeNameSQL takes a name in three cases: the name is free, or this instance has it, or all database sessions of the
// instance that has it have ended. Those are the registration's session and the sessions that deliver, which have the
// name in their application_name; without them the instance can't publish what it would still believe to own. It also
// takes the name of instance $6 if that has been silent since $7. Roles without pg_read_all_stats don't see when
// sessions of other roles started: a session with the same process id then counts as alive. A conflict is with the
// name's own row.
const takeNameSQL = `
INSERT INTO outbox.relays AS r (name, instance, backend_pid, backend_start, host, pid, version, clock_ahead, silence)
SELECT $1, $2::text::uuid, a.pid, a.backend_start, $3, $4, $5, $8::timestamptz - clock_timestamp(), $9::bigint * interval '1 microsecond' FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()
ON CONFLICT (name) DO UPDATE SET
	instance = excluded.instance, backend_pid = excluded.backend_pid, backend_start = excluded.backend_start,
	host = excluded.host, pid = excluded.pid, version = excluded.version,
	started_at = CASE WHEN r.instance = excluded.instance THEN r.started_at ELSE excluded.started_at END,
	heartbeat_at = excluded.heartbeat_at, clock_ahead = excluded.clock_ahead, role = excluded.role,
	silence = excluded.silence
WHERE r.instance = excluded.instance
	OR r.instance = $6::text::uuid AND r.heartbeat_at = $7
	OR NOT EXISTS (
		SELECT FROM pg_stat_activity a
		WHERE a.pid = r.backend_pid AND coalesce(a.backend_start = r.backend_start, true)
		OR a.datname = current_database() AND a.application_name = current_setting('application_name') AND a.pid <> pg_backend_pid()
	)`

func (r *Registration) take(ctx context.Context, conn *pgx.Conn, before *predecessor) (bool, error) {
	var silent *string
	var since *time.Time
	if before != nil && before.silent {
		silent, since = &before.instance, &before.heartbeat
	}
	tag, err := conn.Exec(ctx, takeNameSQL, r.name, r.instance, r.host, os.Getpid(), r.cfg.Version, silent, since, time.Now(),
		r.cfg.Lease.Microseconds())
	if err != nil {
		return false, fmt.Errorf("take the name: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

func (r *Registration) find(ctx context.Context, conn *pgx.Conn) (*predecessor, error) {
	var p predecessor
	err := conn.QueryRow(ctx, `SELECT instance::text, host, pid, heartbeat_at, silence FROM outbox.relays WHERE name = $1`, r.name).
		Scan(&p.instance, &p.host, &p.pid, &p.heartbeat, &p.silence)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for a namesake: %w", err)
	}
	return &p, nil
}

// run keeps the relay registered until ctx ends. It opens a new connection when one is lost.
func (r *Registration) run(ctx context.Context, lost <-chan struct{}) {
	defer close(r.stopped)
	for {
		err := r.beat(ctx, lost)
		if ctx.Err() != nil {
			r.leave()
			return
		}
		r.line.Drop(err)
		r.set(err)
		r.cfg.Logger.Warn("registration interrupted", "relay", r.name, "error", err)
		for err != nil {
			var conn *pgx.Conn
			if conn, err = r.register(ctx); err == nil {
				lost = r.line.Open(conn)
				break
			}
			if ctx.Err() != nil {
				return
			}
			if outbox.IsPermanent(err) {
				r.cfg.Logger.Error("registration lost", "relay", r.name, "error", err)
			}
			r.set(err)
			if lease.Pause(ctx, r.cfg.Lease/3) != nil {
				return
			}
		}
		r.set(nil)
	}
}

// calmSilence is how long a relay may be silent in a database where nothing happens. It has heartbeats three times as
// often, since others take one that is silent for health.maxHeartbeatAge for dead.
const calmSilence = 24 * time.Second

const beatSQL = `UPDATE outbox.relays SET heartbeat_at = clock_timestamp(), clock_ahead = $3::timestamptz - clock_timestamp(),
	silence = $4::bigint * interval '1 microsecond'
WHERE name = $1 AND instance = $2::text::uuid`

// beat renews the heartbeat until the connection is lost or the name is taken over. If the server refuses one, the
// connection stays, because the leases are on it. If it refuses the next one as well, another connection may be what
// helps: the session of a role that was dropped has no rights, even if there is a role of that name again.
func (r *Registration) beat(ctx context.Context, lost <-chan struct{}) error {
	due := time.NewTimer(min(r.cfg.Lease, calmSilence) / 3)
	defer due.Stop()
	refusals := 0
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-lost:
			return fmt.Errorf("the connection was lost: %w", r.line.Why())
		case <-due.C:
		}
		silence := r.cfg.Lease
		if r.line.Calm() {
			silence = max(silence, calmSilence)
		}
		var tag pgconn.CommandTag
		err := r.line.Do(ctx, func(conn *pgx.Conn) (err error) {
			// This doesn't use ctx, whose end would close the connection.
			beating, cancel := context.WithTimeout(context.WithoutCancel(ctx), dial.AnswerWithin)
			defer cancel()
			tag, err = conn.Exec(beating, beatSQL, r.name, r.instance, time.Now(), silence.Microseconds())
			return err
		})
		due.Reset(min(silence, calmSilence) / 3) // line.Silence is longer
		var refused *pgconn.PgError
		switch {
		case ctx.Err() != nil || errors.Is(err, line.ErrDown):
			continue // the select has the reason
		case errors.As(err, &refused) && refusals == 0:
			refusals++
			r.cfg.Logger.Warn("the heartbeat was refused", "relay", r.name, "error", err)
			r.set(fmt.Errorf("say that the relay is alive: %w", err))
		case err != nil:
			return fmt.Errorf("say that the relay is alive: %w", err)
		case tag.RowsAffected() == 0:
			return fmt.Errorf("%w: its registration as %q was taken over", ErrNamesake, r.name)
		default:
			refusals = 0
			r.set(nil)
		}
	}
}

// leave removes the row if it is still this instance's.
func (r *Registration) leave() {
	r.line.Close(func(ctx context.Context, conn *pgx.Conn) {
		_, err := conn.Exec(ctx, `DELETE FROM outbox.relays WHERE name = $1 AND instance = $2::text::uuid`, r.name, r.instance)
		if err != nil {
			r.cfg.Logger.Debug("registration not removed", "relay", r.name, "error", err)
		}
	})
	r.set(owner.ErrClosed)
}
