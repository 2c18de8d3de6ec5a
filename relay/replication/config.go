package replication

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay/polling"
)

// Config tunes a [Source]. The zero value means the stated defaults.
type Config struct {
	// Table is how the table is read before the log is, how long the lease lasts, under whose name, and who is
	// told. Groups must be 1: a slot can't be split. PageBytes bounds a batch here too.
	Table polling.SnapshotConfig

	// Slot is the name of the replication slot: lower-case letters, digits and underscores, at most 63.
	// Default "outbox_" and the destination's name with everything else replaced by underscores.
	Slot string

	// Publication is the name of the publication of outbox.messages. One serves all destinations. Default
	// "outbox". It is created if it isn't there and the role may do so.
	Publication string

	// WithoutFailover leaves the slot out of what PostgreSQL 17 and later synchronise to standbys. By default it is
	// created with FAILOVER; that costs nothing without a standby that has sync_replication_slots.
	WithoutFailover bool

	// Emitted has logical messages (outbox.Writer.Emit) delivered too. Whoever may execute
	// pg_logical_emit_message can then publish, and PostgreSQL lets everybody: the relay warns at each start, with the
	// REVOKE, until it is revoked. Default: rows alone.
	Emitted bool

	// Heartbeat is how long the log may be silent before the server is asked where it is, which lets the slot
	// advance. Default 10 s.
	Heartbeat time.Duration
}

const (
	defaultPublication = "outbox"
	defaultHeartbeat   = 10 * time.Second
	maxName            = 63
)

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// SlotName is the default name of a destination's slot.
func SlotName(destination string) string {
	name := []byte("outbox_" + strings.ToLower(destination))
	for i, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			name[i] = '_'
		}
	}
	return string(name[:min(len(name), maxName)])
}

// withDefaults fills what is zero and reports all faults together.
func (c Config) withDefaults(conn *pgx.ConnConfig, destination string) (Config, error) {
	if c.Slot == "" {
		c.Slot = SlotName(destination)
	}
	if c.Publication == "" {
		c.Publication = defaultPublication
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = defaultHeartbeat
	}
	if c.Table.Logger == nil {
		c.Table.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Table.Lease == 0 {
		c.Table.Lease = 3 * time.Second
	}
	if c.Table.PageBytes == 0 {
		c.Table.PageBytes = 2 << 20
	}
	var faults []error
	if conn == nil {
		faults = append(faults, errors.New("there is no connection config"))
	}
	if c.Table.Groups > 1 {
		faults = append(faults, fmt.Errorf("%d shard groups: a replication slot can't be split, use one, or the strategy snapshot", c.Table.Groups))
	}
	if !slotName.MatchString(c.Slot) {
		faults = append(faults, fmt.Errorf("Slot is %q: it must be 1 to %d lower-case letters, digits and underscores", c.Slot, maxName))
	}
	if len(c.Publication) > maxName || strings.ContainsAny(c.Publication, "\"\x00") {
		faults = append(faults, fmt.Errorf("Publication is %q: it must be at most %d bytes, without quotes", c.Publication, maxName))
	}
	if c.Heartbeat < 0 {
		faults = append(faults, fmt.Errorf("Heartbeat is %v, it must be positive", c.Heartbeat))
	}
	if len(faults) > 0 {
		return c, fmt.Errorf("replication: destination %q: %w", destination, errors.Join(faults...))
	}
	return c, nil
}
