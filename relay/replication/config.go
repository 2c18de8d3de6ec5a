package replication

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay/internal/owner"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/schema"
)

// Config tunes a [Source]. The zero value means the stated defaults.
type Config struct {
	// Table configures the reading of the table before the log is read, the length of the lease, its owner's name, and
	// the logger. Groups must be 1, because a slot can't be split. PageBytes bounds a batch from the log too.
	Table polling.SnapshotConfig

	// Slot is the name of the replication slot: lower-case letters, digits and underscores, at most 63.
	// Default: [schema.SlotName] of the connection's database and the destination.
	Slot string

	// Publication is the name of the publication of outbox.messages. One serves all destinations. Default "outbox". The
	// relay creates it if it is missing and its role may do so.
	Publication string

	// WithoutFailover excludes the slot from those that PostgreSQL 17 and later synchronise to standbys. By default it
	// is created with FAILOVER, which costs nothing without a standby that has sync_replication_slots.
	WithoutFailover bool

	// Emitted delivers logical messages (outbox.Writer.Emit) too. Then every role that may execute
	// pg_logical_emit_message can publish, and by default PostgreSQL allows that to all roles. Until it is revoked, the
	// relay warns at each start, and the warning has the REVOKE. Default: rows only.
	Emitted bool

	// CatchUp is how far the end of the log may be from the settled position, in bytes, until the table is read, which
	// is several times faster. When the table is read to its end, the log is followed again, from a new slot. Up to a
	// sixteenth of CatchUp is delivered twice then. The table has the order of ids, which is the order of a key only if
	// each insert follows the lock on the key's row. Not with Emitted. Default 0: always read the log.
	CatchUp int64

	// Heartbeat is how long the log may be silent before the relay asks the server for its position, which lets the
	// slot advance. Default 10 s.
	Heartbeat time.Duration
}

const (
	defaultPublication = "outbox"
	defaultHeartbeat   = 10 * time.Second
	maxName            = 63
)

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// Defaults returns the Config that the zero value stands for.
func Defaults() Config {
	cfg, _ := Config{}.withDefaults(nil, "") // without the required fields
	cfg.Slot = ""
	return cfg
}

// Check reports all faults together, for a caller that checks a configuration before it makes a source of the
// destination.
func (c Config) Check(destination string) error {
	var faults settings.Faults
	c.complete(&faults, "", destination)
	return faults.Err()
}

// withDefaults replaces zero values by the defaults and reports all faults together.
func (c Config) withDefaults(conn *pgx.ConnConfig, destination string) (Config, error) {
	var faults settings.Faults
	faults.Need(conn != nil, "", "there is no connection config")
	c.complete(&faults, Database(conn), destination)
	if err := faults.Err(); err != nil {
		return c, fmt.Errorf("replication: destination %q: %w", destination, err)
	}
	return c, nil
}

// Database is the one that conn leads to: the user's, unless one is named.
func Database(conn *pgx.ConnConfig) string {
	switch {
	case conn == nil:
		return ""
	case conn.Database == "":
		return conn.User
	}
	return conn.Database
}

// complete replaces zero values by the defaults, and notes faults.
func (c *Config) complete(faults *settings.Faults, database, destination string) {
	faults.Need(c.Table.Groups <= 1, "Table.Groups",
		"%d shard groups: a replication slot can't be split, use one, or the strategy snapshot", c.Table.Groups)
	settings.Default(&c.Slot, schema.SlotName(database, destination))
	faults.Need(slotName.MatchString(c.Slot), "Slot", "%q, it must be 1 to %d lower-case letters, digits and underscores", c.Slot, maxName)
	settings.Default(&c.Publication, defaultPublication)
	faults.Need(len(c.Publication) <= maxName && !strings.ContainsAny(c.Publication, "\"\x00"), "Publication",
		"%q, it must be at most %d bytes, without quotes", c.Publication, maxName)
	faults.Need(c.CatchUp >= 0, "CatchUp", "%d bytes, it must not be negative", c.CatchUp)
	faults.Need(c.CatchUp == 0 || !c.Emitted, "CatchUp", "given together with Emitted, but messages without a row are in the log alone")
	settings.Positive(faults, "Heartbeat", &c.Heartbeat, defaultHeartbeat)
	settings.Default(&c.Table.Lease, owner.Default)
	settings.Default(&c.Table.PageBytes, 2<<20)
	c.Table.Logger = settings.Logger(c.Table.Logger)
}
