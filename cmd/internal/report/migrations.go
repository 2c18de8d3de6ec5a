package report

import (
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/schema"
)

// Migration is a line of "migrate status".
type Migration struct {
	Version   int       `json:"version"`
	Name      string    `json:"name"`
	AppliedAt time.Time `json:"applied_at,omitzero"`
}

// Migrations prints those of a database.
func Migrations(to output.Streams, out output.Format, state schema.State, all []Migration) error {
	switch out {
	case output.AsJSON:
		return output.JSON(to.Stdout, struct {
			Database   string      `json:"database"`
			Server     string      `json:"server"`
			Version    int         `json:"version"`
			Latest     int         `json:"latest"`
			Migrations []Migration `json:"migrations"`
		}{state.Database, state.Server, state.Version, state.Latest, all})
	case output.AsJSONL:
		return output.JSONL(to.Stdout, all)
	}
	fmt.Fprintf(to.Stdout, "database %s, PostgreSQL %s: version %d of %d\n\n", output.Clean(state.Database), state.Server,
		state.Version, state.Latest)
	t := output.NewTable(to.Stdout, "VERSION", "NAME", "APPLIED")
	for _, m := range all {
		applied := "pending"
		if !m.AppliedAt.IsZero() {
			applied = m.AppliedAt.Local().Format(time.DateTime)
		}
		t.Row(fmt.Sprintf("%04d", m.Version), m.Name, applied)
	}
	return t.Flush()
}
