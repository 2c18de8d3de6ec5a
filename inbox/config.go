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

	storedSuffix = " (stored)" // of the name under which a stored inbox records; a name with it has room in MaxConsumerBytes
)

// Config tunes an [Inbox]. The zero value is fit for use.
type Config struct {
	// DedupKey returns what a message is known by, of at most MaxDedupBytes: two messages with the same
	// one are the same. "" stands for the message's ID. Default: the ID.
	DedupKey func(*outbox.Message) string

	// ComeBack makes Handle return ErrBusy at once when another transaction is applying the same message.
	// Default: it waits for that one's end, and then knows whether there is anything left to do.
	ComeBack bool

	// Gaps is what follows when a message's sequence number, in its header outbox.SequenceHeader, is not
	// the next of its topic and key. Default GapIgnore: numbers are not looked at.
	Gaps GapPolicy

	// FromAnywhere takes the first message of a key that comes for the key's first, for a consumer that
	// did not exist when the first were sent. Default: a key begins with number 1.
	FromAnywhere bool

	// Version returns the version of what the message is about, its OrderingKey within its topic. A
	// message whose version isn't newer than the newest applied is not applied: its outcome is Stale.
	// Default: messages have no versions.
	Version func(*outbox.Message) (int64, error)

	// Column, with Version, makes a column of the caller's hold the version of what is there, in place of
	// the inbox's own table. The handler writes it.
	Column *VersionColumn

	// Unordered makes Store keep messages without their order: a Worker then applies those of one key in
	// parallel, and one that fails doesn't hold up those behind it. With Gaps set to GapWait they are
	// applied in the order of their sequence numbers even so.
	Unordered bool

	// Timeout is after how long the handler's context ends. Default: when the caller's does.
	Timeout time.Duration

	// Logger gets gaps and, at level Debug, what was not applied; nil is silent.
	Logger *slog.Logger

	// Observer is told of every message. Default: none.
	Observer Observer

	// Tracer wraps every message in a span; nil for none.
	Tracer Tracer
}

// GapPolicy says what follows when messages of a key are missing before the one that came.
type GapPolicy string

const (
	// GapIgnore looks at no sequence numbers.
	GapIgnore GapPolicy = ""
	// GapReport applies the message, reports the gap (Result.Missing) and notes it in outbox.inbox_gaps
	// until what is missing has come. What comes late is applied late.
	GapReport GapPolicy = "report"
	// GapWait applies nothing and returns a *GapError: the message is to be delivered again later.
	GapWait GapPolicy = "wait"
)

// VersionColumn names a column that holds the version of what a row is about. Names may be qualified
// ("billing.invoices"); they are quoted.
type VersionColumn struct {
	Table   string
	Key     string // the column that is compared with the message's OrderingKey; unique
	Version string // an integer column; NULL is older than everything
}

// withDefaults reports all faults together.
func (c Config) withDefaults(consumer string) (Config, error) {
	c.Logger = settings.Logger(c.Logger)
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	if c.Tracer == nil {
		c.Tracer = nobody{}
	}
	var faults settings.Faults
	faults.Need(consumer != "", "", "the consumer has no name: give one that never changes, because its records are kept under it")
	faults.Need(!strings.HasSuffix(consumer, storedSuffix), "", "the consumer's name ends with %q, which marks what is stored", storedSuffix)
	faults.Need(len(consumer) <= MaxConsumerBytes, "", "the consumer's name has %d bytes, the limit is %d", len(consumer), MaxConsumerBytes)
	faults.Need(storable(consumer), "", "the consumer's name is not valid UTF-8, or has a NUL in it")
	faults.Need(c.Gaps == GapIgnore || c.Gaps == GapReport || c.Gaps == GapWait, "Gaps", "%q, want %q, %q or nothing", c.Gaps, GapReport, GapWait)
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
