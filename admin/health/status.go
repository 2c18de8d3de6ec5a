// Package health tells how the outbox is: the state of every destination with one verdict, its backlog, what keeps
// segments and the inbox, and what the doctor finds.
package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/schema"
)

// Status reads the whole state in one snapshot. It needs the rights of a viewer; with pg_read_all_stats
// it also tells what open transactions of other roles do. If its tables are locked, the verdict says so, and who has
// locked them.
func Status(ctx context.Context, db admin.DB) (*Report, error) {
	return StatusWith(ctx, db, nil, false)
}

// StatusWith is Status for a relay, which knows things about its own tables that the database may not have yet. With
// alone, it doesn't read the outbox: where that isn't installed or can't be read, the report has the relay's own tables
// only.
func StatusWith(ctx context.Context, db admin.DB, own []OwnTable, alone bool) (*Report, error) {
	r, err := readStatus(ctx, db, own, alone)
	if err == nil || !alone || !absent(err) {
		return r, err
	}
	r = &Report{}
	err = admin.Read(ctx, db, func(tx pgx.Tx) error {
		if err := r.readClock(ctx, tx); err != nil {
			return err
		}
		return r.countTables(ctx, tx, r.addOwn(nil, own), false)
	})
	if err != nil {
		return nil, fmt.Errorf("read the state of the tables: %w", err)
	}
	r.judge(allRules)
	return r, nil
}

// absent reports whether the outbox isn't installed here, has another version, or can't be read by this role.
func absent(err error) bool {
	switch sqlstate.Of(err) {
	case "42501", "42P01", "3F000", "42703", "42883":
		return true
	}
	return false
}

func readStatus(ctx context.Context, db admin.DB, own []OwnTable, alone bool) (*Report, error) {
	r := &Report{}
	err := admin.Read(ctx, db, func(tx pgx.Tx) error {
		if err := admin.PreferIndexes(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", awaitLocks.Milliseconds())); err != nil {
			return err
		}
		if err := r.readClock(ctx, tx); err != nil {
			return err
		}
		if err := r.readHolders(ctx, tx); err != nil {
			return err
		}
		if slices.ContainsFunc(r.Holders, func(h Holder) bool { return h.Table }) {
			return errLocked
		}
		err := schema.Intact(ctx, tx)
		if errors.Is(err, schema.ErrSegments) {
			r.Altered = err.Error()
		} else if err != nil {
			return err
		}
		cursors, err := admin.ReadCursors(ctx, tx)
		if err != nil {
			return err
		}
		if err := r.readDestinations(ctx, tx, cursors, own); err != nil {
			return err
		}
		if err := r.readWaiting(ctx, tx); err != nil {
			return err
		}
		if err := r.readSegments(ctx, tx, cursors); err != nil {
			return err
		}
		if r.Unindexed, err = schema.Unindexed(ctx, tx); err != nil {
			return err
		}
		if err := r.readRelays(ctx, tx); err != nil {
			return err
		}
		if err := r.readRights(ctx, tx); err != nil {
			return err
		}
		if err := r.readUnselected(ctx, tx, cursors); err != nil {
			return err
		}
		if r.Jobs, err = jobs.Read(ctx, tx, `state IN ('running', 'undoing')`, 20); err != nil {
			return fmt.Errorf("read the jobs: %w", err)
		}
		return r.readOpen(ctx, tx)
	})
	if alone && absent(err) {
		return nil, err
	}
	if err != nil {
		known, failure := reportUnreadable(ctx, db, err) // what prevents it as well has been said by err
		switch {
		case known != nil:
			return known, nil
		case failure == nil && errors.Is(err, errLocked):
			return readStatus(ctx, db, own, alone) // the lock is gone since
		}
		return nil, fmt.Errorf("read the outbox's state: %w", err)
	}
	r.judge(allRules)
	return r, nil
}

func (r *Report) readDestinations(ctx context.Context, tx pgx.Tx, cursors []admin.Cursor, own []OwnTable) error {
	for i := range cursors {
		c := &cursors[i]
		b, err := ReadBacklog(ctx, tx, c)
		if err != nil {
			return err
		}
		d := r.destination(c.Destination)
		d.Groups = append(d.Groups, Group{
			Group: c.Group, Groups: c.Groups, Owner: c.Owner, Live: c.Live, LeaseUntil: admin.Value(c.LeaseUntil), Epoch: c.Epoch,
			State: c.State, StateSince: c.StateSince, LastError: c.LastError, LastErrorAt: admin.Value(c.LastErrorAt),
			UpdatedAt: c.UpdatedAt, Foreign: c.Foreign,
			Pending: b.Pending, Oldest: b.Oldest,
		})
		d.Pending = d.Pending.Plus(b.Pending)
		d.LagObjective = time.Duration(c.Objective) * time.Microsecond
		d.Rate = c.Settings.Rate
		d.Delivered += c.Delivered
		d.Oldest = earliest(d.Oldest, b.Oldest)
	}
	if err := r.readHeld(ctx, tx); err != nil {
		return err
	}
	if err := r.readDead(ctx, tx); err != nil {
		return err
	}
	if err := r.readUnreplicated(ctx, tx); err != nil {
		return err
	}
	if err := r.readSlots(ctx, tx); err != nil {
		return err
	}
	if err := r.readTables(ctx, tx, own); err != nil {
		return err
	}
	if err := r.readBrokers(ctx, tx); err != nil {
		return err
	}
	controls, err := admin.ReadControls(ctx, tx, "")
	if err != nil {
		return fmt.Errorf("read the controls: %w", err)
	}
	for _, c := range controls {
		// One of a name that nothing else is known of is about a destination that isn't here.
		if i := slices.IndexFunc(r.Destinations, func(d Destination) bool { return d.Name == c.Destination }); i >= 0 {
			r.Destinations[i].Controls = append(r.Destinations[i].Controls, c)
		}
	}
	slices.SortFunc(r.Destinations, func(a, b Destination) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

// readUnselected leaves out topics that a destination of another relay may select: the relay that noted them knows its
// own configuration alone, and that exactly.
func (r *Report) readUnselected(ctx context.Context, tx pgx.Tx, cursors []admin.Cursor) error {
	rows, err := tx.Query(ctx, `
		SELECT topic, messages, event_type, message_id::text, relay, first_at, last_at
		FROM outbox.unselected WHERE last_at > clock_timestamp() - interval '1 day'
		ORDER BY messages DESC, topic LIMIT 1000`)
	if err == nil {
		r.Unselected, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Unselected])
	}
	if err != nil {
		return fmt.Errorf("read unselected topics: %w", err)
	}
	r.Unselected = slices.DeleteFunc(r.Unselected, func(u Unselected) bool {
		return slices.ContainsFunc(cursors, func(c admin.Cursor) bool { return c.Owner != u.Relay && c.SelectsTopic(u.Topic, u.EventType) })
	})
	r.Unselected = r.Unselected[:min(len(r.Unselected), 10)]
	return nil
}

// reportUnreadable returns the report that is possible when the outbox's tables can't be read, because they are locked
// or because the relay's role, which asks, has lost a right. It returns nil for any other error.
func reportUnreadable(ctx context.Context, db admin.DB, why error) (*Report, error) {
	locked := errors.Is(why, errLocked) || sqlstate.Of(why) == "55P03"
	if !locked && sqlstate.Of(why) != "42501" {
		return nil, nil
	}
	r := &Report{unread: why.Error()}
	err := admin.Read(ctx, db, func(tx pgx.Tx) error {
		if err := r.readClock(ctx, tx); err != nil {
			return err
		}
		if locked {
			return r.readHolders(ctx, tx)
		}
		if shut, err := r.shutOut(ctx, tx); shut || err != nil {
			return err
		}
		if err := r.readRelays(ctx, tx); err != nil {
			return err
		}
		r.Relays = slices.DeleteFunc(r.Relays, func(relay Relay) bool { return relay.User != tx.Conn().Config().User })
		return r.readRights(ctx, tx)
	})
	if _, found := r.unreadable(); err != nil || !found {
		return nil, err
	}
	r.judge(allRules)
	return r, nil
}

func (r *Report) readClock(ctx context.Context, tx pgx.Tx) error {
	return tx.QueryRow(ctx, `SELECT clock_timestamp(), current_database()::text`).Scan(&r.At, &r.Database)
}
