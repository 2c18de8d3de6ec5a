// Package bounds shares what one process may use among the databases that it delivers from: sessions with a PostgreSQL
// server ([Connections]), memory for messages in flight ([Memory]), and turns to catch up ([Turns]). It knows nothing
// of relays. All is safe for concurrent use.
package bounds

import "time"

const (
	// patience is how long somebody waits at a bound before one of those that use it is asked to yield.
	patience = time.Second

	// undisturbed is how long a database may use what it has before it is asked to yield.
	undisturbed = 3 * time.Second
)
