package polling

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay/internal/owner"
	"github.com/pgoutbox/outbox/relay/registration"
	"github.com/pgoutbox/outbox/schema"
)

// SnapshotConfig tunes a [Snapshot]. The zero value means the stated defaults.
type SnapshotConfig struct {
	// Registration is the relay that this source belongs to; see [registration.Register]. After a restart under the
	// same name, its sources take their leases back at once. nil: the source has a random name and isn't listed among
	// the running relays, and after a crash its successor waits until the lease expires.
	Registration *registration.Registration

	// Groups is the number of shard groups of the destination, 1 to 64, and Group is the one that this source reads,
	// from 0. Default: group 0 of 1. All sources of a destination must agree on Groups. How to change it: see
	// [Snapshot.Acquire].
	Groups int
	Group  int

	// Lease is how long a relay that has stopped answering keeps its shard group. It is renewed every third of that
	// time; the renewal also stores what idle polls have passed. At least 100 ms. Default 3 s.
	Lease time.Duration

	// PollBusy is the time from one poll to the next while messages come, and for 25 such times afterwards; a slow poll
	// is followed by a pause as long as itself, at most PollBusy. Then each empty poll makes the time a quarter longer,
	// up to PollIdle. Half of PollBusy is about what polling adds to a message's latency. Where messages are rare,
	// writers notify the session instead, and it polls once a second, or each PollIdle if that is longer; after half a
	// minute without any, every five seconds. Defaults 1 ms and 100 ms.
	PollBusy time.Duration
	PollIdle time.Duration

	// PageBytes limits, approximately, the text and payload of a batch. Larger messages come in smaller batches; a
	// single message may exceed it. Default 2 MiB.
	PageBytes int

	// LagObjective is how long a message may wait before the verdict calls the destination lagging. It is stored in
	// the cursor, so that every program judges by it. Negative: no limit. Default 30 s, which is longer than a
	// take-over or a broker's restart takes.
	LagObjective time.Duration

	// Settings, if not nil, is stored in the cursor as JSON, for people to be told of it: admin.Settings says what is
	// read from it.
	Settings any

	// Wake, if not nil, ends a pause when a value is received from it: a writer in the same process signals that it has
	// committed something.
	Wake <-chan struct{}

	// FirstEmpty makes Next return an empty batch if the first poll of a session finds nothing, so that its caller
	// learns that nothing has piled up.
	FirstEmpty bool

	// Logger reports changes of ownership; nil: slog.Default.
	Logger *slog.Logger
}

const defaultLagObjective = 30 * time.Second

// Defaults returns the SnapshotConfig that the zero value stands for.
func Defaults() SnapshotConfig {
	var c SnapshotConfig
	c.complete(new(settings.Faults))
	return c
}

// Check reports all faults together, for a caller that checks a configuration before it makes a source.
func (c SnapshotConfig) Check() error {
	var faults settings.Faults
	c.complete(&faults)
	return faults.Err()
}

// withDefaults replaces zero values by the defaults and reports all faults together.
func (c SnapshotConfig) withDefaults(conn *pgx.ConnConfig, destination string) (SnapshotConfig, error) {
	var faults settings.Faults
	faults.Need(conn != nil, "", "there is no connection config")
	faults.Need(destination != "", "", "the destination has no name")
	c.complete(&faults)
	if err := faults.Err(); err != nil {
		return c, fmt.Errorf("polling: destination %q: %w", destination, err)
	}
	return c, nil
}

// complete replaces zero values by the defaults, and notes faults.
func (c *SnapshotConfig) complete(faults *settings.Faults) {
	settings.Within(faults, "Groups", &c.Groups, 1, 1, schema.ShardCount)
	faults.Need(c.Group >= 0 && c.Group < max(c.Groups, 1), "Group", "%d, it must be 0 to %d", c.Group, c.Groups-1)
	settings.AtLeast(faults, "Lease", &c.Lease, owner.Default, owner.Min)
	settings.Positive(faults, "PollBusy", &c.PollBusy, time.Millisecond)
	settings.AtLeast(faults, "PollIdle", &c.PollIdle, max(100*time.Millisecond, c.PollBusy), c.PollBusy)
	settings.Default(&c.LagObjective, defaultLagObjective)
	settings.Positive(faults, "PageBytes", &c.PageBytes, 2<<20)
	c.Logger = settings.Logger(c.Logger)
}
