package polling

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/schema"
)

// SnapshotConfig tunes a [Snapshot]. The zero value means the stated defaults.
type SnapshotConfig struct {
	// Registration is the relay that this source belongs to; see [Register]. Its sources take their
	// leases back at once after a restart under the same name. nil: the source has a name that no
	// restart comes back to, isn't listed among the running relays, and after a crash its successor
	// waits until the lease ends.
	Registration *Registration

	// Groups is into how many shard groups the destination is split, 1 to 64, and Group which of them
	// this source reads, from 0. Default: group 0 of 1. All sources of a destination must agree on
	// Groups; when it changes, see [Snapshot.Acquire].
	Groups int
	Group  int

	// Lease is how long a shard group stays with a relay that has stopped answering. It is renewed
	// every third of that, and what idle polls have passed is stored with it. At least 100 ms.
	// Default 3 s.
	Lease time.Duration

	// PollBusy is the pause between polls while messages come and for 25 such pauses after, PollIdle the
	// longest one: from then on each empty poll makes the pause a quarter longer. PollBusy is about what
	// polling adds to a message's latency. Defaults 1 ms and 100 ms.
	PollBusy time.Duration
	PollIdle time.Duration

	// PageBytes is about how much text and payload a batch has at most. Larger messages come in
	// smaller batches; a single message may exceed it. Default 2 MiB.
	PageBytes int

	// Wake, if not nil, ends a pause at once when something is received from it: the writer's signal
	// in the same process that something was committed.
	Wake <-chan struct{}

	// Logger gets changes of ownership; nil is silent.
	Logger *slog.Logger
}

const (
	defaultLease = 3 * time.Second
	minLease     = 100 * time.Millisecond
)

// Defaults returns the SnapshotConfig that the zero value stands for.
func Defaults() SnapshotConfig {
	var c SnapshotConfig
	c.complete(new(settings.Faults))
	return c
}

// Check reports all faults together, for who configures a source before there is one.
func (c SnapshotConfig) Check() error {
	var faults settings.Faults
	c.complete(&faults)
	return faults.Err()
}

// withDefaults fills what is zero and reports all faults together.
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

// complete fills what is zero, and notes faults.
func (c *SnapshotConfig) complete(faults *settings.Faults) {
	settings.Within(faults, "Groups", &c.Groups, 1, 1, schema.ShardCount)
	faults.Need(c.Group >= 0 && c.Group < max(c.Groups, 1), "Group", "%d, it must be 0 to %d", c.Group, c.Groups-1)
	settings.AtLeast(faults, "Lease", &c.Lease, defaultLease, minLease)
	settings.Positive(faults, "PollBusy", &c.PollBusy, time.Millisecond)
	settings.AtLeast(faults, "PollIdle", &c.PollIdle, max(100*time.Millisecond, c.PollBusy), c.PollBusy)
	settings.Positive(faults, "PageBytes", &c.PageBytes, 2<<20)
	c.Logger = settings.Logger(c.Logger)
}
