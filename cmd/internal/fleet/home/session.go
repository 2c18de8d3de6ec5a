// Package home keeps the members of a fleet in its home database: who is there, which ordinal each has, and what each
// has taken over. All that it knows is in two tables of the outbox's schema and in the locks of sessions there.
package home

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/cmd/internal/fleet"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/schema"
)

// ErrNamesake means that another live member of the fleet has this name.
var ErrNamesake = errors.New("another member of the fleet has this name")

// Move is a part that a member has taken over.
type Move struct {
	Part  fleet.Part
	From  string // the member that had it; "" for none
	Cause string
}

// session is one connection to the home, which holds the lock of its member.
type session struct {
	cfg   *Config
	pg    *pgx.Conn
	table uint32 // the oid of outbox.members
	lock  int32
}

const (
	channel = "outbox_fleet"
	// answerWithin bounds a statement. A home that takes longer is away.
	answerWithin = 5 * time.Second
)

// open connects and takes a lock, which the member's row has from then on.
func open(ctx context.Context, cfg *Config) (_ *session, err error) {
	ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	pg, err := dial.Session(ctx, cfg.Conn, "outbox fleet "+cfg.Name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			dial.HangUp(pg)
		}
	}()
	if err := check(ctx, pg); err != nil {
		return nil, err
	}
	s := &session{cfg: cfg, pg: pg, lock: int32(rand.Uint32())}
	var locked bool
	err = pg.QueryRow(ctx, `SELECT 'outbox.members'::regclass::oid`).Scan(&s.table)
	if err == nil {
		err = pg.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, int32(s.table), s.lock).Scan(&locked)
	}
	if err == nil && !locked {
		err = errors.New("another session has this lock") // the next try has another number
	}
	if err == nil {
		_, err = pg.Exec(ctx, "LISTEN "+channel)
	}
	if err == nil { // it is not its first session
		_, err = pg.Exec(ctx, `UPDATE outbox.members SET lock = $3, beat_at = clock_timestamp() WHERE fleet = $1 AND instance = $2::text::uuid`,
			cfg.Fleet, cfg.Instance, s.lock)
	}
	if err != nil {
		return nil, fmt.Errorf("open a session at the fleet's home: %w", err)
	}
	return s, nil
}

// check says what the home lacks.
func check(ctx context.Context, pg *pgx.Conn) error {
	var standby, may bool
	sql := "SELECT pg_is_in_recovery(), " + schema.MaySQL("members", "SELECT", "INSERT", "UPDATE", "DELETE") + " AND " +
		schema.MaySQL("moves", "SELECT", "INSERT", "UPDATE")
	if err := pg.QueryRow(ctx, sql).Scan(&standby, &may); err != nil {
		return fmt.Errorf("look at the fleet's home: %w", err)
	}
	if standby {
		return errors.New("the fleet's home is a hot standby: give the address of the primary, or add target_session_attrs=read-write")
	}
	if !may {
		user := pg.Config().User
		return fmt.Errorf("database %q, the fleet's home, has no table outbox.members that %q may write: run there: outbox migrate up, "+
			"then: outbox migrate grants --apply --relay %s", pg.Config().Database, user, shell.Word(user))
	}
	return nil
}

// livesSQL is the condition that the session of a row m of outbox.members holds its lock.
const livesSQL = `EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.mode = 'ExclusiveLock'
	AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
	AND l.classid = 'outbox.members'::regclass::oid AND l.objid::bigint = m.lock::bigint & 4294967295)`

// row is a row of outbox.members.
type row struct {
	Name, Instance string
	Lock           int32
	Ordinal        *int
	Weight         float64
	Placement      int
	Joined, Beat   time.Time
	Leaving        bool
	Left           *time.Time
	Cause          string
	Lives          bool
}

// look says that this member is there, and reads who else is. now is the home's clock.
func (s *session) look(ctx context.Context) (now time.Time, rows []row, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	b := &pgx.Batch{}
	b.Queue(`UPDATE outbox.members SET beat_at = clock_timestamp() WHERE fleet = $1 AND instance = $2::text::uuid AND lock = $3`,
		s.cfg.Fleet, s.cfg.Instance, s.lock)
	b.Queue(`SELECT clock_timestamp()`)
	b.Queue(`SELECT m.name, m.instance::text, m.lock, m.ordinal, m.weight, m.placement, m.joined_at, m.beat_at, m.leaving, m.left_at, m.cause, `+
		livesSQL+` FROM outbox.members m WHERE m.fleet = $1 ORDER BY m.name, m.joined_at`, s.cfg.Fleet)
	results := s.pg.SendBatch(ctx, b)
	_, err = results.Exec()
	if err == nil {
		err = results.QueryRow().Scan(&now)
	}
	if err == nil {
		var found pgx.Rows
		if found, err = results.Query(); err == nil {
			rows, err = pgx.CollectRows(found, pgx.RowToStructByPos[row])
		}
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return now, nil, fmt.Errorf("look at the fleet's home: %w", err)
	}
	return now, rows, nil
}

// exec runs a statement of which $1 is the fleet. If it has changed anything, all members are told to look.
func (s *session) exec(ctx context.Context, what, sql string, args ...any) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	tag, err := s.pg.Exec(ctx, sql, append([]any{s.cfg.Fleet}, args...)...)
	if changed = err == nil && tag.RowsAffected() > 0; changed {
		_, err = s.pg.Exec(ctx, `SELECT pg_notify($1, $2)`, channel, s.cfg.Fleet)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", what, err)
	}
	return changed, nil
}

// joinSQL writes the row of a member, unless another live one has its name. One that others took for dead is there
// again.
const joinSQL = `
INSERT INTO outbox.members AS m (fleet, instance, name, lock, weight, placement, version, host, pid)
SELECT $1, $2::text::uuid, $3, $4, $5, $6, $7, $8, $9
WHERE NOT EXISTS (SELECT FROM outbox.members m WHERE m.fleet = $1 AND m.name = $3 AND m.instance <> $2::text::uuid
	AND NOT m.leaving AND m.left_at IS NULL AND ` + livesSQL + `)
ON CONFLICT (fleet, instance) DO UPDATE SET lock = excluded.lock, left_at = NULL, leaving = false, cause = '',
	beat_at = excluded.beat_at`

func (s *session) join(ctx context.Context) (joined bool, err error) {
	c := s.cfg
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	weight := c.Weight
	if weight == 0 {
		weight = 1
	}
	joined, err = s.exec(ctx, "join the fleet", joinSQL, c.Instance, c.Name, s.lock, weight, fleet.Version, c.Version, host, os.Getpid())
	if err == nil && !joined {
		err = fmt.Errorf("%w: %q; give this one another --name", ErrNamesake, c.Name)
	}
	return joined, err
}

func (s *session) leave(ctx context.Context) (bool, error) {
	return s.exec(ctx, "leave the fleet", `UPDATE outbox.members SET leaving = true, left_at = coalesce(left_at, clock_timestamp()), cause = 'it stops'
		WHERE fleet = $1 AND instance = $2::text::uuid AND NOT leaving`, s.cfg.Instance)
}

// claim takes an ordinal that nobody has, or that of a member that leaves or is dead.
func (s *session) claim(ctx context.Context, c fleet.Claim) (look bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	err = pgx.BeginFunc(ctx, s.pg, func(tx pgx.Tx) error {
		if c.From != "" {
			tag, err := tx.Exec(ctx, `UPDATE outbox.members m SET ordinal = NULL WHERE fleet = $1 AND instance = $2::text::uuid AND ordinal = $3
				AND (leaving OR left_at IS NOT NULL OR NOT `+livesSQL+`)`, s.cfg.Fleet, c.From, c.Ordinal)
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 0 {
				return errTaken
			}
		}
		tag, err := tx.Exec(ctx, `UPDATE outbox.members SET ordinal = $3 WHERE fleet = $1 AND instance = $2::text::uuid AND ordinal IS NULL
			AND left_at IS NULL AND NOT leaving`, s.cfg.Fleet, s.cfg.Instance, c.Ordinal)
		if err == nil && tag.RowsAffected() == 0 {
			err = errTaken
		}
		if err == nil {
			_, err = tx.Exec(ctx, `SELECT pg_notify($1, $2)`, channel, s.cfg.Fleet)
		}
		return err
	})
	if errors.Is(err, errTaken) || sqlstate.Of(err) == "23505" {
		return true, nil // another one was faster: the next look shows it
	}
	if err != nil {
		return false, fmt.Errorf("claim ordinal %d: %w", c.Ordinal, err)
	}
	return true, nil
}

var errTaken = errors.New("the ordinal is another one's")

// bury notes that a member is dead: its session has ended, or it has been silent since its last beat.
func (s *session) bury(ctx context.Context, m row) (bool, error) {
	cause, gone := "its session has ended", `NOT `+livesSQL
	if m.Lives {
		cause, gone = "it is silent", `beat_at = $4`
	}
	return s.exec(ctx, "note that a member is dead", `UPDATE outbox.members m SET left_at = clock_timestamp(), cause = $3
		WHERE fleet = $1 AND instance = $2::text::uuid AND left_at IS NULL AND beat_at >= $4 AND `+gone, m.Instance, cause, m.Beat)
}

// forget deletes the row of a member that has gone, and so gives its ordinal free.
func (s *session) forget(ctx context.Context, instance string) (bool, error) {
	return s.exec(ctx, "forget a member", `DELETE FROM outbox.members m WHERE fleet = $1 AND instance = $2::text::uuid AND NOT `+livesSQL, instance)
}

// moved writes down which parts this member has taken.
func (s *session) moved(ctx context.Context, moves []Move) error {
	var databases, destinations, from, causes []string
	var groups []int32
	for _, m := range moves {
		databases, destinations = append(databases, m.Part.Database), append(destinations, m.Part.Destination)
		groups, from, causes = append(groups, int32(m.Part.Group)), append(from, m.From), append(causes, m.Cause)
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := s.pg.Exec(ctx, `INSERT INTO outbox.moves (fleet, member, database, destination, shard_group, previous, cause)
		SELECT $1, $2, x.* FROM unnest($3::text[], $4::text[], $5::integer[], $6::text[], $7::text[]) x (a, b, c, d, e)
		ORDER BY 3, 4, 5 -- so that members don't wait for each other in a circle
		ON CONFLICT (fleet, database, destination, shard_group) DO UPDATE SET member = excluded.member, previous = excluded.previous,
			cause = excluded.cause, moved_at = clock_timestamp()`, s.cfg.Fleet, s.cfg.Name, databases, destinations, groups, from, causes)
	if err != nil {
		return fmt.Errorf("note what moved: %w", err)
	}
	return nil
}

// told waits until somebody tells that something in this fleet has changed.
func (s *session) told(ctx context.Context) error {
	for {
		n, err := s.pg.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if n.Channel == channel && n.Payload == s.cfg.Fleet {
			return nil
		}
	}
}
