package daemon

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/cmd/internal/fleet"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/schema"
)

// standByEvery is how often a second choice looks at a database: each look takes a connection.
const standByEvery = 30 * time.Second

// standBy looks at the databases of which this member is the second choice, until ctx ends. A part whose lease nobody
// has in two looks is run here: its first choice lives, and can't reach the database. It goes back when that one waits
// for it.
func (m *member) standBy(ctx context.Context) {
	missed := make(map[fleet.Part]bool)
	for ctx.Err() == nil {
		began := time.Now()
		seconds := m.seconds()
		for name, parts := range seconds {
			pause := m.standByEvery / time.Duration(len(seconds)+1) // one after the other
			if dial.Pause(ctx, pause) != nil {
				return
			}
			m.lookAt(ctx, name, parts, missed)
		}
		if dial.Pause(ctx, max(m.standByEvery-time.Since(began), m.standByEvery/10)) != nil {
			return
		}
	}
}

// seconds are the parts that this member is the second choice of, by database. A table of its own is left out: it has
// no lease that can be read.
func (m *member) seconds() map[string][]fleet.Part {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make(map[string][]fleet.Part)
	for _, p := range m.news.StandBy {
		u := m.units[p.Database]
		if u != nil && slices.ContainsFunc(u.parts, func(o part) bool {
			return o.destination.Name == p.Destination && o.group == p.Group && o.destination.Source == nil
		}) {
			list[p.Database] = append(list[p.Database], p)
		}
	}
	return list
}

// lookAt finds out which parts of a database somebody has. missed are those that nobody had in the last look.
func (m *member) lookAt(ctx context.Context, name string, parts []fleet.Part, missed map[fleet.Part]bool) {
	m.mu.Lock()
	u := m.units[name]
	m.mu.Unlock()
	if u == nil {
		return
	}
	held, err := u.leased(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := false
	for _, p := range parts {
		has := held[shardGroup{p.Destination, p.Group}]
		fill := m.filling[p]
		switch {
		case err != nil: // this one can't reach it either
			missed[p] = false
		case fill && has && !u.watch.holdsGroup(shardGroup{p.Destination, p.Group}):
			delete(m.filling, p)
			changed = true
		case has || fill:
			missed[p] = false
		case missed[p]:
			m.filling[p], missed[p], changed = true, false, true
			m.logger.Warn("a part is delivered by its second choice: the first one is there, and doesn't have it", "fleet", m.cfg.Name,
				"database", p.Database, "destination", p.Destination, "shard_group", p.Group)
		default:
			missed[p] = true
		}
	}
	if changed {
		m.apply(m.news)
	}
}

// leased are the shard groups whose lease somebody has, or has given back to be dormant.
func (u *unit) leased(ctx context.Context) (map[shardGroup]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	conn, err := connect.Open(ctx, u.conn, u.Origin)
	if err != nil {
		return nil, err
	}
	defer connect.Close(conn)
	rows, err := conn.Query(ctx, `SELECT destination, shard_group FROM outbox.cursors WHERE `+schema.LeasedSQL+`
		OR EXISTS (SELECT FROM outbox.relays WHERE name = owner AND `+schema.DormantSQL+`)`)
	if err != nil {
		return nil, err
	}
	held := make(map[shardGroup]bool)
	var at shardGroup
	_, err = pgx.ForEachRow(rows, []any{&at.destination, &at.group}, func() error {
		held[at] = true
		return nil
	})
	return held, err
}
