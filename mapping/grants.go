package mapping

import (
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/schema"
)

// GrantsSQL returns the statements that give a role all rights that a relay needs on the tables of m by a strategy. The
// owner of the tables runs them. The rights of a stream are another matter: REPLICATION is an attribute of the role.
func (m *Mapping) GrantsSQL(strategy, role string) string {
	to := " TO " + schema.QuoteIdentifier(role)
	var all []string
	grant := func(rights, table string) {
		name, err := ParseTableName(table)
		if err != nil {
			return // Validate tells that
		}
		if name.Schema != "" {
			usage := "GRANT USAGE ON SCHEMA " + schema.QuoteIdentifier(name.Schema) + to
			if !slices.Contains(all, usage) {
				all = append(all, usage)
			}
		}
		all = append(all, "GRANT "+rights+" ON "+name.String()+to)
	}
	marks := strategy != XMin && strategy != Serial && strategy != Replication
	switch {
	case strategy == Replication: // the stream reads the log, with no right on the table
	case !marks:
		grant("SELECT", m.Table)
	case m.Done.How == DoneDelete || m.Failure.DeadTable != "":
		grant("SELECT, UPDATE, DELETE", m.Table) // UPDATE also lets a relay lock rows
	default:
		grant("SELECT, UPDATE", m.Table)
	}
	if m.Failure.DeadTable != "" {
		grant("SELECT, INSERT", m.Failure.DeadTable)
	}
	if !marks && strategy != Replication {
		grant("SELECT, INSERT, UPDATE", m.Offsets.Table)
	}
	return strings.Join(all, "; ")
}
