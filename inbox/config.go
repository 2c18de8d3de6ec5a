package inbox

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Limits of what is recorded.
const (
	MaxConsumerBytes = 200
	MaxDedupBytes    = 1024

	storedSuffix = " (stored)" // appended to the name under which a stored inbox records; the longest name with it fits MaxConsumerBytes
)

// Config tunes an [Inbox]. The zero value is fit for use.
type Config struct {
	// DedupKey returns what identifies a message, of at most MaxDedupBytes: two messages with the same key are the
	// same. "" stands for the message's ID. Default: the ID.
	DedupKey func(*outbox.Message) string

	// ComeBack makes Handle return ErrBusy at once while another transaction is applying the same message. Default:
	// Handle waits for that transaction's end, and then knows whether anything is left to do.
	ComeBack bool

	// Gaps is what happens when a message's sequence number, in its header outbox.SequenceHeader, is not the next of
	// its topic and key. Default GapIgnore: numbers are not looked at.
	Gaps GapPolicy

	// FromAnywhere takes the first message of a key that comes for the key's first, for a consumer that did not exist
	// when the first messages were sent. Default: a key begins with number 1.
	FromAnywhere bool

	// Version returns the version of the message's subject, which its OrderingKey identifies within its topic. A
	// message whose version isn't newer than the newest applied one is not applied: its outcome is Stale. Default:
	// messages have no versions.
	Version func(*outbox.Message) (int64, error)

	// Column, with Version, names a column of the caller's own that has the current version, instead of the inbox's
	// table. The handler writes it. Its row is locked; while there is none, an advisory lock stands for it, which costs
	// a round trip more, and with database/sql two.
	Column *VersionColumn

	// Unordered makes Store keep messages without their order: a Worker then applies those of one key in parallel, and
	// a message that fails doesn't hold up later ones. With Gaps set to GapWait they are still applied in the order of
	// their sequence numbers.
	Unordered bool

	// Timeout is the time after which the handler's context ends. Default: only the caller's context ends it.
	Timeout time.Duration

	// Logger reports gaps and, at level Debug, messages that were not applied; nil: slog.Default.
	Logger *slog.Logger

	// Observer gets an event for every message. Default: none.
	Observer Observer

	// Tracer wraps every message in a span; nil for none.
	Tracer Tracer
}

// GapPolicy decides about a message before which messages of its key are missing.
type GapPolicy string

const (
	// GapIgnore looks at no sequence numbers.
	GapIgnore GapPolicy = ""
	// GapReport applies the message, reports the gap (Result.Missing) and notes it in outbox.inbox_gaps until the
	// missing messages have come. Late messages are applied late.
	GapReport GapPolicy = "report"
	// GapWait applies nothing and returns a *GapError: deliver the message again later.
	GapWait GapPolicy = "wait"
)

// VersionColumn names the column with the version of a row. Names may be qualified ("billing.invoices"); they are
// quoted.
type VersionColumn struct {
	Table   string
	Key     string // the column that is compared with the message's OrderingKey; unique
	Version string // an integer column; NULL is older than any version
}

// withDefaults replaces zero values by the defaults and reports all faults together.
func (c Config) withDefaults(consumer string) (Config, error) {
	c.Logger = settings.Logger(c.Logger)
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	if c.Tracer == nil {
		c.Tracer = noObserver{}
	}
	var faults settings.Faults
	faults.Need(consumer != "", "", "the consumer has no name: give one that never changes, because its records are kept under it")
	faults.Need(!strings.HasSuffix(consumer, storedSuffix), "",
		"the consumer's name ends with %q, which marks what is stored", storedSuffix)
	faults.Need(len(consumer) <= MaxConsumerBytes, "", "the consumer's name has %d bytes, the limit is %d", len(consumer), MaxConsumerBytes)
	faults.Need(storable(consumer), "", "the consumer's name is not valid UTF-8, or has a NUL in it")
	faults.Need(c.Gaps == GapIgnore || c.Gaps == GapReport ||
		c.Gaps == GapWait, "Gaps", "%q, want %q, %q or nothing", c.Gaps, GapReport, GapWait)
	faults.Need(!c.FromAnywhere || c.Gaps != GapIgnore, "FromAnywhere", "set, and Gaps is not: it says where sequence numbers begin")
	faults.Need(c.Timeout >= 0, "Timeout", "%v, it must be positive", c.Timeout)
	if v := c.Column; v != nil {
		faults.Need(c.Version != nil, "Column", "set, and Version is not: it says what to compare the column with")
		faults.Need(v.Table != "" && v.Key != "" && v.Version != "", "Column", "needs the names of a table and of two columns")
	}
	if err := faults.Err(); err != nil {
		return c, fmt.Errorf("inbox: consumer %.40q: %w", consumer, err)
	}
	return c, nil
}
