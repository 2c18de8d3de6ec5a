package home

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/cmd/internal/fleet"
)

// State is what the home has of a fleet, for people.
type State struct {
	At      time.Time // by the home's clock
	Members []Member
	Moves   []Moved // the last of each part
}

// Member is a start of a process.
type Member struct {
	fleet.Record
	Version, Host string
	PID           int
	Beat          time.Time
	Cause         string // why it leaves or is dead
}

// Moved is the last move of a part.
type Moved struct {
	Move
	To string
	At time.Time
}

// Read reads the state of a fleet. It changes nothing, and needs SELECT on the tables of fleets.
func Read(ctx context.Context, pg *pgx.Conn, name string) (s State, err error) {
	err = pgx.BeginTxFunc(ctx, pg, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&s.At); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT m.name, m.instance::text, coalesce(m.ordinal, -1), m.weight, m.placement, m.joined_at, m.leaving,
			coalesce(m.left_at, 'epoch'), `+livesSQL+`, m.version, m.host, m.pid, m.beat_at, m.cause
			FROM outbox.members m WHERE m.fleet = $1 ORDER BY m.ordinal NULLS LAST, m.name, m.joined_at`, name)
		if err != nil {
			return err
		}
		if s.Members, err = pgx.CollectRows(rows, toMember); err != nil {
			return err
		}
		if rows, err = tx.Query(ctx, `SELECT database, destination, shard_group, previous, cause, member, moved_at
			FROM outbox.moves WHERE fleet = $1 ORDER BY moved_at DESC, database, destination, shard_group`, name); err != nil {
			return err
		}
		s.Moves, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Moved, err error) {
			err = row.Scan(&m.Part.Database, &m.Part.Destination, &m.Part.Group, &m.From, &m.Cause, &m.To, &m.At)
			return m, err
		})
		return err
	})
	if err != nil {
		return s, fmt.Errorf("read the members of fleet %q: %w", name, err)
	}
	return s, nil
}

func toMember(row pgx.CollectableRow) (m Member, err error) {
	err = row.Scan(&m.Name, &m.Instance, &m.Ordinal, &m.Weight, &m.Record.Version, &m.Joined, &m.Leaving, &m.Left, &m.Alive,
		&m.Version, &m.Host, &m.PID, &m.Beat, &m.Cause)
	if m.Left.Unix() == 0 {
		m.Left = time.Time{}
	}
	return m, err
}

// Placement is who is to have which part, as the members themselves find it from this state.
func (s State) Placement(parts []fleet.Part) ([]fleet.Member, fleet.Placement) {
	records := make([]fleet.Record, len(s.Members))
	for i, m := range s.Members {
		records[i] = m.Record
	}
	onlooker := fleet.New(fleet.Config{Name: "", Instance: "", Ordinal: fleet.Spare})
	step := onlooker.Next(fleet.View{Readable: true, Now: s.At, Records: records, Parts: parts})
	return step.Members, step.Placement
}
