package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay/internal/wal"
	"github.com/pgoutbox/outbox/schema"
)

// mode is what an operator wants a destination to be read from; see destinations.Handover in admin/destinations.
type mode string

const (
	modeReplication mode = "replication"
	modeSnapshot    mode = "snapshot"
)

// slotRow is a destination's row of outbox.slots, and what the server knows about the slot and the publication that it
// names.
type slotRow struct {
	mode        mode
	slot        string
	publication string

	trusted bool // a position is stored
	stored  wal.Mark
	moved   bool    // the cursor isn't where this strategy left it
	covers  wal.LSN // the cursor sees everything that commits before this
	version string

	there struct {
		slot      bool
		plugin    string
		database  string // "" if the slot belongs to this one
		confirmed wal.LSN
		status    string // wal_status
		reason    string // invalidation_reason, of PostgreSQL 17 and later
		active    int    // process that streams from it

		version string // "" if not every insert is sent
	}
}

// slotRowSQL reads the row and looks up the slot. Columns that only newer versions have are read by name from the row
// as JSON.
const slotRowSQL = `
SELECT p.mode, p.slot, p.publication, p.position IS NOT NULL, coalesce(p.position, '0/0')::text,
	coalesce(p.partial_lsn, '0/0')::text, p.partial_count, coalesce(p.fallback_lsn, '0/0')::text,
	p.fallback IS NULL OR c.prev::text <> p.fallback::text OR cardinality(c.windows) > 0,
	coalesce(p.publication_version, ''), s.slot_name IS NOT NULL, coalesce(s.plugin, ''), coalesce(nullif(s.database, current_database()), ''),
	coalesce(s.confirmed_flush_lsn, '0/0')::text, coalesce(s.wal_status, ''),
	coalesce(to_jsonb(s) ->> 'invalidation_reason', ''), coalesce(s.active_pid, 0),
	coalesce((` + versionSQL + `p.publication), '')
FROM outbox.slots p
JOIN outbox.cursors c ON c.destination = p.destination AND c.shard_group = 0
LEFT JOIN pg_replication_slots s ON s.slot_name = p.slot
WHERE p.destination = $1`

func readSlotRow(ctx context.Context, conn *pgx.Conn, destination string) (p slotRow, err error) {
	var position, partialLSN, covers, confirmed string
	err = conn.QueryRow(ctx, slotRowSQL, destination).Scan(&p.mode, &p.slot, &p.publication, &p.trusted, &position,
		&partialLSN, &p.stored.Partial.Count, &covers, &p.moved, &p.version, &p.there.slot, &p.there.plugin, &p.there.database,
		&confirmed, &p.there.status, &p.there.reason, &p.there.active, &p.there.version)
	if err != nil {
		return p, fmt.Errorf("read the place in the log: %w", err)
	}
	var err1, err2, err3, err4 error
	p.stored.Position, err1 = wal.ParseLSN(position)
	p.stored.Partial.Commit, err2 = wal.ParseLSN(partialLSN)
	p.there.confirmed, err3 = wal.ParseLSN(confirmed)
	p.covers, err4 = wal.ParseLSN(covers)
	return p, errors.Join(err1, err2, err3, err4)
}

// createSlotRow inserts the row of a destination that has none, and refuses a slot that another destination has. If
// another session has inserted the row, it is read as it is.
func createSlotRow(ctx context.Context, conn *pgx.Conn, destination, slot, publication string) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// The lock ends with the transaction. Without it, two destinations could insert the same slot at once.
		_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('outbox.slots', 0))")
		if err != nil {
			return err
		}
		if err := refuseTaken(ctx, tx, destination, slot); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO outbox.slots (destination, slot, publication) VALUES ($1, $2, $3)
			ON CONFLICT DO NOTHING`, destination, slot, publication)
		return err
	})
	if err != nil && !outbox.IsPermanent(err) {
		return fmt.Errorf("make the place in the log: %w", err)
	}
	return err
}

// refuseTaken refuses a slot that another destination has.
func refuseTaken(ctx context.Context, q schema.Querier, destination, slot string) error {
	var other string
	err := q.QueryRow(ctx, "SELECT destination FROM outbox.slots WHERE slot = $2 AND destination <> $1", destination, slot).Scan(&other)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look whether another destination has the slot: %w", err)
	}
	return dial.Permanent("the replication slot %q belongs to destination %s, and a slot serves one: give one of the two another "+
		"slot name, or, if %[2]s isn't wanted any more, run: outbox destinations drop %[2]s", slot, other)
}

// errNew is the reason why a destination that was never read from the log can't continue there.
var errNew = errors.New("there was none yet")

// lost returns why the log can't be continued from p.stored, or nil if it can. It never trusts a slot that could have
// skipped something: the position is authoritative only if the slot is not beyond it, and if the cursor and the
// publication are still the same.
func (p *slotRow) lost(slot, publication string) error {
	switch {
	case !p.trusted:
		return errNew
	case p.slot != slot || p.publication != publication:
		return fmt.Errorf("slot %q and publication %q were configured before, now %q and %q", p.slot, p.publication, slot, publication)
	case !p.there.slot:
		return fmt.Errorf("slot %q is gone: it was dropped, or a standby was promoted that didn't have it", p.slot)
	case p.there.status == "lost" || p.there.reason != "":
		reason := p.there.reason
		if reason == "" {
			reason = "it kept more of the log than max_slot_wal_keep_size allows"
		}
		return fmt.Errorf("slot %q was invalidated: %s", p.slot, reason)
	case p.there.confirmed > p.stored.Position:
		return fmt.Errorf("slot %q is at %s, beyond the settled position %s: somebody has advanced or recreated it",
			p.slot, p.there.confirmed, p.stored.Position)
	case p.moved:
		return errors.New("the cursor was moved by another strategy, or by a rebase")
	case p.there.version == "":
		return fmt.Errorf("publication %q is gone, or no longer publishes all inserts into outbox.messages, or a segment is UNLOGGED",
			p.publication)
	case p.there.version != p.version:
		return fmt.Errorf("publication %q was changed or recreated, or a segment was attached or rewritten, as SET UNLOGGED does: "+
			"rows inserted in between may not have been sent", p.publication)
	}
	return nil
}

// foreign refuses a slot of this name that can't be ours.
func (p *slotRow) foreign() error {
	switch {
	case p.there.database != "":
		return dial.Permanent("the replication slot %q belongs to database %q of the same server: give the destination another slot "+
			"name, or, if nothing reads that slot, drop it there", p.slot, p.there.database)
	case p.there.slot && p.there.plugin == "":
		return dial.Permanent("the replication slot %q is a physical one, of a standby: give the destination another slot name", p.slot)
	case p.there.slot && p.there.plugin != "pgoutput":
		return dial.Permanent("the replication slot %q belongs to something else, with the plugin %q: give the destination another "+
			"slot name",
			p.slot, p.there.plugin)
	}
	return nil
}
