package health

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/schema"
)

// digestSQL reads what changes with every message, every action of an operator and every change of a relay's state. It
// reads whole tables only where these have a row for each destination or relay, and the ends of indexes elsewhere.
const digestSQL = `SELECT clock_timestamp(), md5(concat_ws('|', ` + cursors.LastSQL + `,
	(SELECT string_agg(concat_ws('/', destination, shard_group, epoch, owner, state, state_since, delivered, last_error_at, ` + schema.LeasedSQL + `),
		',' ORDER BY destination, shard_group) FROM outbox.cursors),
	(SELECT string_agg(concat_ws('/', name, instance, abs(extract(epoch FROM clock_timestamp() - heartbeat_at)) < ` + maxHeartbeatAge + ` OR ` + schema.DormantSQL + `),
		',' ORDER BY name) FROM outbox.relays),
	EXISTS (SELECT FROM outbox.holds),
	EXISTS (SELECT FROM outbox.jobs WHERE state IN ('running', 'undoing')),
	(SELECT max(id) FROM outbox.audit),
	(SELECT string_agg(concat_ws('/', id, rate, until > clock_timestamp()), ',' ORDER BY id) FROM outbox.controls),
	(SELECT concat_ws('/', max(recorded_at), max(refused_at)) FROM outbox.brokers),
	(SELECT max(last_at) FROM outbox.unselected),
	(SELECT string_agg(concat_ws('/', destination, shard_group, owner, state, last_error_at), ',' ORDER BY destination, shard_group, owner)
		FROM outbox.tables)))`

// Digest returns a text that is another one when what a report on a database at rest says has changed since, and the
// time by the server. It costs a hundredth of a report.
func Digest(ctx context.Context, conn *pgx.Conn) (at time.Time, digest string, err error) {
	if err := conn.QueryRow(ctx, digestSQL).Scan(&at, &digest); err != nil {
		return at, "", fmt.Errorf("ask whether the outbox's state has changed: %w", err)
	}
	return at, digest, nil
}

// Waits reports whether something in the database is for a relay of the destinations: a message that is pending or
// held, a job, what is in a relay's way, or a transaction that may have written. A report that can't tell says so too.
func (r *Report) Waits(destinations []string) bool {
	if r.At.IsZero() || r.unread != "" || r.Waiting.N > 0 || len(r.Open) > 0 || len(r.Holders) > 0 || len(r.Jobs) > 0 ||
		r.Altered != "" || r.Unreplicated != (Unreplicated{}) {
		return true
	}
	return slices.ContainsFunc(destinations, func(name string) bool {
		at := slices.IndexFunc(r.Destinations, func(d Destination) bool { return d.Name == name })
		if at < 0 {
			return true
		}
		d := &r.Destinations[at]
		return d.Pending.N > 0 || d.Held.Messages.N > 0 || d.Slot != nil || d.Table != nil ||
			slices.ContainsFunc(d.Groups, func(g Group) bool { return g.Foreign })
	})
}

// AtRest reports whether nothing happens in the database: no message waits, no job runs, nothing is in anybody's way.
// Until the digest changes, the report stays true then.
func (r *Report) AtRest() bool {
	if r.At.IsZero() || r.unread != "" || r.Waiting.N > 0 || len(r.Open) > 0 || len(r.Holders) > 0 || len(r.Jobs) > 0 ||
		r.Altered != "" || r.Unreplicated != (Unreplicated{}) {
		return false
	}
	for i := range r.Destinations {
		d := &r.Destinations[i]
		if d.Pending.N > 0 || d.Held.Messages.N > 0 || d.Slot != nil || d.Table != nil {
			return false
		}
		for j := range d.Groups {
			if g := &d.Groups[j]; !g.Recovered() && !r.asleep(g) {
				return false
			}
		}
	}
	return true
}

// Unchanged returns the report of a database at rest as it is at another time.
func (r *Report) Unchanged(at time.Time) *Report {
	now := *r
	now.At = at
	return &now
}
