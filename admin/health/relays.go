package health

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/schema"
)

// maxHeartbeatAge is how old the heartbeat of a live relay may be, in seconds. Relays send one every third of a lease,
// which lasts a few seconds; a relay with a longer lease is known by that. A heartbeat that is as far in the future was
// sent before the clock was set back.
const maxHeartbeatAge = "30"

// asleep reports whether a dormant relay has given the group's lease back, and looks whether something waits. A lease
// that was given back before it began was left behind.
func (r *Report) asleep(g *Group) bool {
	return g.State == DormantState || !g.Live && slices.ContainsFunc(r.Relays, func(relay Relay) bool {
		return relay.Dormant && relay.Name == g.Owner && g.LeaseUntil.IsZero() && !g.UpdatedAt.Before(relay.StartedAt)
	})
}

// DormantState is the state of a [Live] part of a database to which its relay has no connection, because nothing
// happens.
const DormantState = "dormant"

func (r *Report) readRelays(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		SELECT name, host, pid, version, started_at, heartbeat_at,
		       abs(extract(epoch FROM clock_timestamp() - heartbeat_at)) < `+maxHeartbeatAge+`
		       OR o.owns IS NOT NULL OR `+schema.DormantSQL+`,
		       coalesce((SELECT a.usename::text FROM pg_stat_activity a WHERE a.datname = current_database()
		                 AND (a.pid = r.backend_pid OR a.application_name = 'outbox relay ' || r.name) LIMIT 1), r.role), NULL::text[], '', date_trunc('second', r.clock_ahead), o.owns, `+schema.DormantSQL+`
		FROM outbox.relays r, LATERAL (
			SELECT array_agg(CASE WHEN c.shard_groups > 1 THEN format('%s/%s', c.destination, c.shard_group) ELSE c.destination END
				ORDER BY c.destination, c.shard_group) AS owns
			FROM outbox.cursors c WHERE c.owner = r.name AND `+schema.LeasedSQL+`) o
		ORDER BY name`)
	if err == nil {
		r.Relays, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Relay])
	}
	if err != nil {
		return fmt.Errorf("read relays: %w", err)
	}
	return nil
}

const goneRole = "does not exist any more"

// readRights finds rights that relays need and lack. A relay without a right may have no session and no heartbeat, so
// relays that seem dead are looked at too.
func (r *Report) readRights(ctx context.Context, tx pgx.Tx) error {
	type role struct {
		barred string
		lacks  []string
	}
	known := map[string]role{}
	for i := range r.Relays {
		relay := &r.Relays[i]
		its, asked := known[relay.User]
		if !asked {
			err := tx.QueryRow(ctx, `SELECT CASE WHEN r.oid IS NULL THEN '`+goneRole+`' WHEN NOT r.rolcanlogin THEN 'may not log in'
				WHEN NOT has_database_privilege(r.oid, current_database(), 'CONNECT') THEN 'may not connect to this database' ELSE '' END
				FROM (VALUES (1)) one LEFT JOIN pg_roles r ON r.rolname = $1::text`, relay.User).Scan(&its.barred)
			if err != nil {
				return fmt.Errorf("look at the role %s: %w", relay.User, err)
			}
			if its.barred != goneRole {
				if its.lacks, err = schema.RelayLacks(ctx, tx, relay.User); err != nil && sqlstate.Of(err) != "42P01" {
					return err
				}
			}
			known[relay.User] = its
		}
		relay.Lacks, relay.Barred = its.lacks, its.barred
	}
	return nil
}

// shutOut finds that the role that asks, a relay's own, may not use the schema: its tables then have no name for it.
// The relay is known by the name of its sessions. Other roles get an error that names the missing right.
func (r *Report) shutOut(ctx context.Context, tx pgx.Tx) (bool, error) {
	relay := Relay{Lacks: []string{"USAGE on schema outbox"}}
	err := tx.QueryRow(ctx, `SELECT current_user::text, regexp_replace(a.name, '^outbox (monitor|api) ', '')
		FROM pg_namespace n, current_setting('application_name') a (name)
		WHERE n.nspname = 'outbox' AND a.name ~ '^outbox (monitor|api) ' AND NOT has_schema_privilege(n.oid, 'USAGE')`).Scan(&relay.User, &relay.Name)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	r.Relays = []Relay{relay}
	return true, err
}
