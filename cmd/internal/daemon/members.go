package daemon

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/cmd/internal/fleet/home"
	"github.com/pgoutbox/outbox/cmd/internal/report"
	"github.com/pgoutbox/outbox/internal/dial"
)

// fleet answers with who has what, as the home has it now; without a home, or while it can't be read, as this member
// knows it.
func (d *Daemon) fleet(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if _, err := d.gate.Load().caller(r); err != nil {
		refuse(w, err)
		return
	}
	f := d.member.report(r.Context(), d.options)
	slices.Sort(f.Nobody)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(f) // the client has gone
}

func (m *member) report(ctx context.Context, options Options) *report.Fleet {
	state, err := m.read(ctx, options)
	m.mu.Lock()
	defer m.mu.Unlock()
	frozen := m.news.Frozen
	if err != nil || m.home == nil {
		state = home.State{}
		for _, r := range m.news.Records {
			state.Members = append(state.Members, home.Member{Record: r, Cause: m.news.Causes[r.Instance]})
		}
	}
	if err != nil && frozen == "" {
		frozen = err.Error()
	}
	f := report.FleetOf(m.cfg.Name, state, m.parts)
	f.Frozen = frozen
	return f
}

// read reads the home on a connection of its own.
func (m *member) read(ctx context.Context, options Options) (state home.State, err error) {
	if options.Home == nil {
		return state, nil
	}
	ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	conn, err := connect.Open(ctx, options.Home, "fleet.home.url")
	if err != nil {
		return state, err
	}
	defer connect.Close(conn)
	return home.Read(ctx, conn, m.cfg.Name)
}

// owners are the names of the members that are to have the databases' first parts, by database.
func (m *member) owners() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make(map[int]string)
	for _, o := range m.news.Members {
		names[o.Ordinal] = o.Name
	}
	of := make(map[string]string)
	for _, p := range m.parts {
		if _, known := of[p.Database]; known {
			continue
		}
		if choice, placed := m.news.Placement[p]; placed {
			of[p.Database] = names[choice.First]
		}
	}
	return of
}
