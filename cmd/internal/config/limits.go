package config

import (
	"github.com/pgoutbox/outbox/cmd/internal/bounds"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

// Limits bounds what one process uses for all of its databases. See docs/operations.md.
type Limits struct {
	ConnectionsPerServer int         `json:"connections_per_server" min:"0" max:"100000" jsonschema:"Sessions that this process has with one PostgreSQL server at once, at least 8. With fewer than it needs, its databases take turns. 0: no bound but the server's."`
	InFlight             int         `json:"in_flight" min:"0" max:"1000000000" jsonschema:"Messages that are read and not settled, of all destinations of all databases. Each may have a page besides. 0: no bound but each destination's."`
	InFlightBytes        scalar.Size `json:"in_flight_bytes" jsonschema:"Their size together. 0: no bound but each destination's."`
	CatchUps             int         `json:"catch_ups" min:"0" max:"100000" jsonschema:"Sessions that begin at one PostgreSQL server, and read what has piled up, at once; the others wait their turn. 0: no bound."`
}

// SetDefaults gives bounds that one busy database does not notice.
func (l *Limits) SetDefaults() {
	*l = Limits{InFlight: 500_000, InFlightBytes: 256 << 20, CatchUps: 16}
}

const leastInFlight = 1 << 20

func (l Limits) check(r *findings.Report) {
	r.Check(l.ConnectionsPerServer == 0 || l.ConnectionsPerServer >= bounds.LeastConnections, "limits.connections_per_server",
		"%d is too few for one database to deliver; the least is %d, and 0 is no bound", l.ConnectionsPerServer, bounds.LeastConnections)
	r.Check(l.InFlightBytes == 0 || l.InFlightBytes >= leastInFlight, "limits.in_flight_bytes",
		"%v is less than a page; the least is %v, and 0 is no bound", l.InFlightBytes, scalar.Size(leastInFlight))
}
