package health

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/internal/printed"
)

// awayStandbysSQL lists the slots of synchronized_standby_slots that no standby confirms, each with the reason. Columns
// that only newer versions have are read by name from the row as JSON.
const awayStandbysSQL = `
	SELECT string_agg(format('%s (%s)', n.name, n.reason), ', ' ORDER BY n.name) AS names,
		CASE WHEN bool_and(n.since IS NOT NULL) THEN min(n.since) END AS since FROM (
		SELECT w.name, (to_jsonb(a) ->> 'inactive_since')::timestamptz AS since, CASE
			WHEN a.slot_name IS NULL THEN 'there is no such slot'
			WHEN a.wal_status = 'lost' OR to_jsonb(a) ->> 'invalidation_reason' IS NOT NULL THEN 'invalidated'
			WHEN NOT a.active THEN 'no standby streams from it' END AS reason
		FROM (SELECT btrim(x, ' "') AS name FROM unnest(string_to_array(current_setting('synchronized_standby_slots', true), ',')) x) w
		LEFT JOIN pg_replication_slots a ON a.slot_name = w.name
		WHERE w.name <> '') n
	WHERE n.reason IS NOT NULL`

// logReadersSQL lists the destinations that read the log: those of the outbox, whose position is stored, and those of
// tables of their own, whose position is the slot's.
const logReadersSQL = `
	SELECT destination, slot, mode, position, lost_at, lost_reason, false AS own FROM outbox.slots
	UNION ALL SELECT destination, slot, 'replication', NULL, NULL, NULL, true FROM (
		SELECT DISTINCT ON (destination) destination, slot FROM outbox.tables ORDER BY destination, updated_at DESC) t WHERE slot <> ''`

// readSlots adds the slots of destinations that have one.
func (r *Report) readSlots(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `SELECT p.destination, p.slot, p.mode,
		coalesce(CASE WHEN p.own THEN coalesce(s.confirmed_flush_lsn, '0/0') ELSE p.position END::text, ''), coalesce(s.wal_status, ''),
		coalesce(CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn) END, 0)::bigint,
		s.safe_wal_size, CASE WHEN to_jsonb(s) ->> 'failover' = 'true' THEN coalesce(away.names, '') ELSE '' END, away.since,
		p.lost_at, coalesce(p.lost_reason, '')
		FROM (`+logReadersSQL+`) p LEFT JOIN pg_replication_slots s ON s.slot_name = p.slot, (`+awayStandbysSQL+`) away ORDER BY p.destination`)
	if err != nil {
		return err
	}
	var name string
	var s Slot
	var lost, away *time.Time
	_, err = pgx.ForEachRow(rows, []any{&name, &s.Name, &s.Mode, &s.Position, &s.Status, &s.Kept, &s.Left, &s.Standbys, &away, &lost,
		&s.LostReason}, func() error {
		slot := s
		slot.LostAt = admin.Value(lost)
		if slot.Standbys != "" {
			slot.StandbysSince = admin.Value(away)
		}
		r.destination(name).Slot = &slot
		return nil
	})
	return err
}

// standbyReturns is how long a standby may be away, as during a restart, before a verdict names it.
const standbyReturns = 10 * time.Second

// heldByStandby finds a slot that waits for standbys that are away. The relay is well, and receives nothing.
func heldByStandby(r *Report, d *Destination) (Finding, bool) {
	if d.Slot == nil || d.Slot.Position == "" || d.Slot.Standbys == "" {
		return Finding{}, false
	}
	f := Finding{State: StateAtRisk, Since: d.Slot.StandbysSince,
		Cause: fmt.Sprintf("the server sends nothing of its log by slot %s: synchronized_standby_slots has it wait for %s",
			d.Slot.Name, d.Slot.Standbys),
		Advice: "start that standby again, or take its slot out of synchronized_standby_slots (ALTER SYSTEM SET, then " +
			"SELECT pg_reload_conf()), after which a failover to it can take back what was delivered"}
	if _, _, late := r.late(d); d.Pending.N > 0 && (late || r.At.Sub(f.Since) >= standbyReturns) {
		f.State = StateBroken
	}
	return f, true
}

// unreplicatedSQL lists transactions that wait for a standby, of statements that are not new. Of a statement that has
// one commit after the other, or a long one with its commit, it isn't known when the wait began.
const unreplicatedSQL = `SELECT DISTINCT format('%s %s %s', pid, backend_xid, query_start) FROM pg_stat_activity
	WHERE wait_event = 'SyncRep' AND datname = current_database() AND query_start < clock_timestamp() - interval '2 seconds'`

// lookAgainAfter is the pause between two looks at what waits for a standby.
const lookAgainAfter = 2 * time.Second

// readUnreplicated counts transactions that wait for a standby in two looks: a commit that is confirmed at once is in
// one at most. A role without pg_read_all_stats sees its own sessions: as the relay's, those in which it settles.
func (r *Report) readUnreplicated(ctx context.Context, tx pgx.Tx) error {
	look := func() (list []string, err error) {
		rows, err := tx.Query(ctx, unreplicatedSQL)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[string])
	}
	before, err := look()
	if err != nil || len(before) == 0 {
		return err
	}
	// In one transaction the server shows the same activity again, unless it is told not to.
	if _, err := tx.Exec(ctx, `SELECT pg_sleep_for($1::text::interval), pg_stat_clear_snapshot()`, lookAgainAfter.String()); err != nil {
		return err
	}
	after, err := look()
	if err != nil {
		return err
	}
	still := int64(len(slices.DeleteFunc(after, func(t string) bool { return !slices.Contains(before, t) })))
	if still == 0 {
		return nil
	}
	r.Unreplicated.Sessions = still
	return tx.QueryRow(ctx, "SELECT current_setting('synchronous_standby_names')").Scan(&r.Unreplicated.Names)
}

// unreplicated finds commits that hang. Writers hang too, and so does a relay that settles.
func unreplicated(r *Report, _ *Destination, _ *Group) (Finding, bool) {
	u := r.Unreplicated
	return Finding{State: StateBroken,
		Cause: fmt.Sprintf("%s for a synchronous standby that does not answer (synchronous_standby_names = '%s')",
			printed.Many(u.Sessions, "commit waits", "commits wait"), u.Names),
		Advice: "start that standby again, or take it out of synchronous_standby_names (ALTER SYSTEM SET, then SELECT pg_reload_conf()), " +
			"after which a failover to it can lose what was committed"}, u.Sessions > 0
}
