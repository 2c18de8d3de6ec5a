package report

import "github.com/pgoutbox/outbox/admin/health"

// KnownPath is where a relay with several databases tells what it knows of them.
const KnownPath = "/api/v1/databases"

// KnownDatabases is what it tells.
type KnownDatabases struct {
	Sentence  string               `json:"sentence"`
	States    map[health.State]int `json:"states"`    // how many databases have each
	Elsewhere int                  `json:"elsewhere"` // databases that other members of the fleet deliver from
	Databases []KnownDatabase      `json:"databases"`
}

// KnownDatabase is one of them.
type KnownDatabase struct {
	Name      string  `json:"name"`
	Elsewhere bool    `json:"elsewhere,omitempty"`
	Age       float64 `json:"age_seconds"` // of the report
	*health.Report
}
