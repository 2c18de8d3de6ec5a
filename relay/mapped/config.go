package mapped

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/mapping"
)

// Config tunes the sources of this package. The zero value means the stated defaults.
type Config struct {
	// Name of the relay. One that restarts under its name takes over at once what it had reserved, and
	// of two that run under one name the second waits. Default: a name that nothing comes back to.
	Name string

	// Lease is how long rows, offsets and locks stay with a relay that has stopped answering. At least
	// 100 ms. Default 10 s.
	Lease time.Duration

	// PollBusy is the pause between polls while messages come, PollIdle the longest one: each empty poll
	// makes the pause a quarter longer. Defaults 1 ms and 100 ms.
	PollBusy time.Duration
	PollIdle time.Duration

	// PageBytes is about how much payload is read at once at most. A single message may exceed it.
	// Default 2 MiB.
	PageBytes int

	// Transactions is how many transactions SkipLocked has open at once at most, each with a batch that
	// is being published. Default 4.
	Transactions int

	// MaxHolds bounds the messages that are set aside for a later attempt. At the bound nothing new is
	// read until some are delivered. Default 100,000; for the strategies that move an offset 10,000 of
	// each partition, delivered ones behind a message set aside included.
	MaxHolds int

	// Group and Groups split the partitions of XMin and Serial between relays: this source reads those
	// whose number modulo Groups is Group. Default: group 0 of 1, which is all. The other strategies
	// have no groups, any number of relays may run.
	Group  int
	Groups int

	// Wake, if not nil, ends a pause at once when something is received from it.
	Wake <-chan struct{}

	// Logger gets changes of ownership; nil is silent.
	Logger *slog.Logger
}

const minLease = 100 * time.Millisecond

// withDefaults fills what is zero and reports all faults together.
func (c Config) withDefaults(conn *pgx.ConnConfig, m mapping.Mapping) (Config, error) {
	if c.Lease == 0 {
		c.Lease = 10 * time.Second
	}
	if c.PollBusy == 0 {
		c.PollBusy = time.Millisecond
	}
	if c.PollIdle == 0 {
		c.PollIdle = max(100*time.Millisecond, c.PollBusy)
	}
	if c.PageBytes == 0 {
		c.PageBytes = 2 << 20
	}
	if c.Transactions == 0 {
		c.Transactions = 4
	}
	if c.Groups == 0 {
		c.Groups = 1
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var faults []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	need(conn != nil, "there is no connection config")
	need(c.Lease >= minLease, "Lease is %v, it must be at least %v", c.Lease, minLease)
	need(c.PollBusy > 0 && c.PollIdle >= c.PollBusy, "PollBusy is %v and PollIdle is %v, they must be positive and PollIdle not the shorter one", c.PollBusy, c.PollIdle)
	need(c.PageBytes > 0, "PageBytes is %d, it must be positive", c.PageBytes)
	need(c.Transactions > 0, "Transactions is %d, it must be positive", c.Transactions)
	need(c.MaxHolds >= 0, "MaxHolds is %d, it must be positive", c.MaxHolds)
	need(c.Groups >= 1 && c.Group >= 0 && c.Group < max(c.Groups, 1), "Group is %d of %d, it must be 0 to %d", c.Group, c.Groups, c.Groups-1)
	if err := m.Validate(); err != nil {
		faults = append(faults, err)
	}
	if len(faults) > 0 {
		return c, fmt.Errorf("mapped: %w", errors.Join(faults...))
	}
	return c, nil
}
