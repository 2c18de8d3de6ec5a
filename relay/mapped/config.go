package mapped

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay/internal/owner"
)

// Config tunes the sources of this package. The zero value means the stated defaults.
type Config struct {
	// Name of the relay. A relay that restarts under its name takes over at once what it had reserved. If two run under
	// one name, the second waits. Default: a random name.
	Name string

	// Destination is the name by which operators pause and throttle what the relay delivers, in outbox.controls
	// of the same database. Without a name, or without that table, they can't.
	Destination string

	// LagObjective is how long a message may wait before the verdict on the destination is that it lags. The relay
	// writes it, and its state, to outbox.tables, if Destination is given and that table is there and may be written
	// to. Negative: as long as it likes. Default 30 s.
	LagObjective time.Duration

	// Settings, if not nil, is written there too, as JSON, and shown to people: admin.Settings lists what is read
	// from it.
	Settings any

	// Lease is how long a relay that has stopped answering keeps its rows, offsets and locks. At least 100 ms. Default
	// 3 s.
	Lease time.Duration

	// PollBusy is the pause between polls while messages come, PollIdle the longest pause: each empty poll makes the
	// pause a quarter longer. Defaults 1 ms and 100 ms.
	PollBusy time.Duration
	PollIdle time.Duration

	// PageBytes limits, approximately, how much payload is read at once. A single message may exceed it. Default 2 MiB.
	PageBytes int

	// Transactions is the most transactions that mapping.SkipLocked has open at once, each with a batch that is being
	// published. Default 4.
	Transactions int

	// MaxHolds bounds the messages that are set aside for a later attempt. At the bound nothing new is read until some
	// are delivered. Default 100,000. For the strategies that move an offset it is 10,000 for each partition, and
	// counts the delivered messages behind a message that is set aside as well.
	MaxHolds int

	// Group and Groups split the partitions of mapping.XMin and mapping.Serial between relays: this source reads those
	// whose number modulo Groups is Group. Default: group 0 of 1, which is all. The other strategies have no groups;
	// any number of relays may run.
	Group  int
	Groups int

	// Slot and Publication are what mapping.Replication reads the log through. Both must exist and be named: see
	// mapping.CreateSlotSQL and mapping.CreatePublicationSQL. The other strategies use neither.
	Slot        string
	Publication string

	// Wake, if not nil, ends a pause when a value is received from it.
	Wake <-chan struct{}

	// Notify is the channel that transactions notify which have inserted rows, so that a pause ends at once: see
	// mapping.NotifySQL. It takes a connection more. Without it, or where no notification can come, such as through a
	// pooler in transaction mode, a row waits at most PollIdle. mapping.Replication doesn't poll, and has no use for
	// it.
	Notify string

	// Logger reports changes of ownership; nil: slog.Default.
	Logger *slog.Logger
}

// defaultLease is longer in tests: a busy machine may lose it.
var defaultLease = owner.Default

// Defaults returns the Config that the zero value stands for with a strategy.
func Defaults(strategy string) Config {
	var c Config
	c.complete(new(settings.Faults), strategy)
	return c
}

// Check reports all faults together, for a caller that checks a configuration before it makes a source.
func (c Config) Check(strategy string) error {
	var faults settings.Faults
	c.complete(&faults, strategy)
	return faults.Err()
}

// withDefaults replaces zero values by the defaults and reports all faults together, also those of m.
func (c Config) withDefaults(strategy string, conn *pgx.ConnConfig, m mapping.Mapping) (Config, error) {
	var faults settings.Faults
	faults.Need(conn != nil, "", "there is no connection config")
	c.complete(&faults, strategy)
	faults.Add("", m.Validate())
	if err := faults.Err(); err != nil {
		return c, fmt.Errorf("mapped: %w", err)
	}
	return c, nil
}

// complete replaces zero values by the defaults, and notes faults.
func (c *Config) complete(faults *settings.Faults, strategy string) {
	holds := 100_000
	if strategy == mapping.XMin || strategy == mapping.Serial {
		holds = 10_000
	}
	settings.Default(&c.LagObjective, 30*time.Second)
	settings.AtLeast(faults, "Lease", &c.Lease, defaultLease, owner.Min)
	settings.Positive(faults, "PollBusy", &c.PollBusy, time.Millisecond)
	settings.AtLeast(faults, "PollIdle", &c.PollIdle, max(100*time.Millisecond, c.PollBusy), c.PollBusy)
	settings.Positive(faults, "PageBytes", &c.PageBytes, 2<<20)
	settings.Positive(faults, "Transactions", &c.Transactions, 4)
	settings.Positive(faults, "MaxHolds", &c.MaxHolds, holds)
	settings.Positive(faults, "Groups", &c.Groups, 1)
	faults.Need(c.Group >= 0 && c.Group < max(c.Groups, 1), "Group", "%d of %d, it must be 0 to %d", c.Group, c.Groups, c.Groups-1)
	faults.Need(len(c.Notify) <= mapping.MaxChannel, "Notify", "the channel %.70q has %d bytes, it must have at most %d",
		c.Notify, len(c.Notify), mapping.MaxChannel)
	faults.Need(c.Notify == "" || strategy != mapping.Replication, "Notify", "%q, but strategy %s doesn't poll: leave it out",
		c.Notify, strategy)
	c.Logger = settings.Logger(c.Logger)
}
