package verbs

import (
	"context"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
)

// Status is the verb "status", which is streamed as well.
func Status() Verb {
	return reads(Verb{
		Name:  "status",
		Short: "Is it flowing? And if not, why, and what to do",
		Long: `Shows one verdict with its cause and the next step, then every destination with its lease, backlog, held
messages and dead letters, the running relays, the segments of the table with who keeps them from being
emptied, and open transactions whose messages are still to come.

States, from best to worst: idle, flowing; at risk (it flows, but a clock, an index or the kept log is wrong), lagging (a message has waited for longer than lag_objective), blocked (some
keys wait for an operator), dead (there are dead letters that no operator has acknowledged: outbox dead ack), paused (a person
wants it so); failing (the broker refuses messages again and again, or all that goes to a topic), stalled (the broker
does not answer), broken (the relay can't work with the database), no relay, stopped (a relay gave up). The verdict is
the worst, and names the others.

Where the configuration has several databases, all are asked at once unless --database names one: a block for each, below
a line that counts the states and names the worst. One that can't be asked is unknown, and the exit code is 1 then.`,
		Example: `  outbox status
  outbox status --watch
  outbox status -o json | jq .verdict
  outbox status --exit-code && deploy`,
	}, func(ctx context.Context, db admin.DB, _ struct{}) (*health.Report, error) {
		return health.Status(ctx, db)
	})
}
