package relay

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Config tunes the relay of one destination. The zero value means the stated defaults, which are what
// the benchmark uses.
type Config struct {
	// Name of the destination in logs and metrics. Default "default".
	Name string

	// Select reports whether the destination wants a message; the others count as delivered. Default:
	// every message. It must be pure: it is called again after a crash. A message at which it panics is invalid.
	Select func(*outbox.Message) bool

	// Batch is how many messages are given to the broker in one call at most. Half as many are read at once, so
	// that reading, delivering and settling go on at the same time. Default 3,000.
	Batch int

	// MaxInFlight bounds the messages that are read and not settled, MaxInFlightBytes their size. At
	// the bound the relay stops reading. At least twice Batch. Defaults 9,000 and 5 MiB. One batch
	// may exceed the bytes.
	MaxInFlight      int
	MaxInFlightBytes int

	// Stripes is how many calls to the broker run at once. Keys are spread over them by shard, so a key
	// is never in two calls. Few make large calls, which cost a broker least; where a call waits for its slowest
	// message, as with HTTP, more of them keep a key that is slow from holding up the others. 1 to 64, default 2.
	Stripes int

	// MaxAttempts is how many failures of a message are counted before OnExhausted applies. Outages
	// don't count. Default 10.
	MaxAttempts int

	// OnExhausted is the policy for messages that will not be tried again. Default DeadLetter.
	OnExhausted Policy

	// Backoff is the pause before a failed message is tried again. Default 100 ms doubling to 1 min.
	Backoff Backoff

	// Outage is the pause before a destination that does not answer, or a topic that is unavailable, is
	// asked again. Default 100 ms doubling to 1 s.
	Outage Backoff

	// HoldAfter is the longest pause for which a lane waits in memory and keeps the cursor from
	// passing; for a longer one it is held in the database. What waits in memory is not counted: a relay that
	// ends forgets these attempts. Default 1 s; a source that shows failures (Traits) has each of them held.
	HoldAfter time.Duration

	// MaxHeldLanes bounds the keys with holds. The relay remembers some 35 bytes of each, so that nothing overtakes
	// them. Messages without a key don't count. At the bound nothing new is read until a tenth is delivered: StateFull.
	// Default 4,000,000.
	MaxHeldLanes int

	// Rate bounds the messages a second that are published: never more than a tenth of a second's worth at
	// once, or one. 0: no bound. Operators may set a lower one while the relay runs.
	Rate float64

	// SettleDelay is how long a settlement may wait for others to share its commit. What is delivered
	// and not settled is repeated after a crash. Default 10 ms.
	SettleDelay time.Duration

	// DrainTimeout bounds how long Run waits, once its context has ended, for what is in flight. Then the contexts of
	// calls end. A call that hasn't returned Grace later hangs, and Run ends with [ErrHung]. Defaults: 10 s and 2 s.
	DrainTimeout time.Duration
	Grace        time.Duration

	// Logger gets state changes and per-message trouble: at most 12 lines a minute of level info and above, as many of
	// level error (dead letters, blocked keys), and a count of the others with the ids of a few messages. Relays of
	// one destination share that bound if they share a [Bounded] logger. nil: slog.Default.
	Logger *slog.Logger

	// Remedy returns what a person can do about a message that will not be tried again, such as a command; log lines
	// about it end with that. nil: nothing is said. blocked means that it keeps its key waiting, instead of a dead
	// letter.
	Remedy func(d *Delivery, blocked bool) string

	// Observer is told what happens. Default: none.
	Observer Observer
}

// Observer is told what a relay does. Its methods are called from the relay's own goroutines, sometimes
// at once, and must not block. If one panics, the relay logs it, once, and goes on.
type Observer interface {
	// Published follows every call to the broker: errs is nil or has an error per message. ages has for each message
	// how long it has been due since it was written, or since DeliverAt. took is how long the call lasted. batch and
	// ages are only valid during Published.
	Published(batch []*outbox.Message, errs []error, ages []time.Duration, took time.Duration)
	// Settled follows every settlement. s, and all that it refers to, is only valid during Settled.
	Settled(s *Settlement)
	// Changed follows every change of state; err is its cause, if it has one.
	Changed(state State, err error)
}

// Defaults returns the Config that the zero value stands for.
func Defaults() Config {
	cfg, _ := Config{}.withDefaults() // without what is required
	return cfg
}

// Check reports all faults together, for who configures a relay before there is one.
func (c Config) Check() error {
	_, err := c.withDefaults()
	return err
}

// withDefaults fills what is zero and reports all faults together.
func (c Config) withDefaults() (Config, error) {
	var faults settings.Faults
	settings.Default(&c.Name, "default")
	settings.Positive(&faults, "Batch", &c.Batch, 3000)
	settings.Default(&c.MaxInFlight, max(9000, 2*c.Batch))
	faults.Need(c.MaxInFlight >= 2*c.Batch, "MaxInFlight", "%d, it must be at least twice the batch (%d)", c.MaxInFlight, c.Batch)
	settings.Positive(&faults, "MaxInFlightBytes", &c.MaxInFlightBytes, 5<<20)
	settings.Within(&faults, "Stripes", &c.Stripes, 2, 1, 64)
	settings.Positive(&faults, "MaxAttempts", &c.MaxAttempts, 10)
	settings.Positive(&faults, "MaxHeldLanes", &c.MaxHeldLanes, 4_000_000)
	settings.Positive(&faults, "Backoff.Initial", &c.Backoff.Initial, 100*time.Millisecond)
	settings.AtLeast(&faults, "Backoff.Max", &c.Backoff.Max, time.Minute, c.Backoff.Initial)
	settings.Positive(&faults, "Outage.Initial", &c.Outage.Initial, 100*time.Millisecond)
	settings.AtLeast(&faults, "Outage.Max", &c.Outage.Max, time.Second, c.Outage.Initial)
	settings.Positive(&faults, "HoldAfter", &c.HoldAfter, time.Second)
	settings.Positive(&faults, "SettleDelay", &c.SettleDelay, 10*time.Millisecond)
	settings.Positive(&faults, "DrainTimeout", &c.DrainTimeout, 10*time.Second)
	settings.Positive(&faults, "Grace", &c.Grace, 2*time.Second)
	settings.Default(&c.OnExhausted, DeadLetter)
	faults.Add("OnExhausted", c.OnExhausted.validate())
	faults.Need(c.Rate >= 0, "Rate", "%v, it can't be negative", c.Rate)
	c.Logger = settings.Logger(c.Logger)
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	if err := faults.Err(); err != nil {
		return c, fmt.Errorf("relay %q: %w", c.Name, err)
	}
	return c, nil
}

func (c Config) core() coreConfig {
	return coreConfig{
		Stripes:          c.Stripes,
		ReadMax:          max(c.Batch/2, 1),
		CallMax:          c.Batch,
		CallBytes:        max(c.MaxInFlightBytes/c.Stripes, 1),
		CallGather:       c.Batch / 2,
		Gather:           5 * time.Millisecond,
		MaxInFlight:      c.MaxInFlight,
		MaxInFlightBytes: c.MaxInFlightBytes,
		MaxHeldLanes:     c.MaxHeldLanes,
		LanesMax:         1000,
		WalkMax:          10_000,
		MaxLoaded:        min(c.Batch, 2000),
		HeldMax:          min(c.Batch, 500),
		MaxAttempts:      c.MaxAttempts,
		OnExhausted:      c.OnExhausted,
		Backoff:          c.Backoff,
		Outage:           c.Outage,
		HoldAfter:        c.HoldAfter,
		SettleDelay:      c.SettleDelay,
		Resync:           5 * time.Second,
		Rate:             c.Rate,
		Control:          time.Second,
		Select:           c.Select,
	}
}

// Bounded returns a logger of whose lines at most 12 a minute are written, at level info and above, as many of level
// error, and a count of the others. Each relay makes one of its Logger, unless it is one already.
func Bounded(logger *slog.Logger) *slog.Logger { return settings.Logger(logger) }

type noObserver struct{}

func (noObserver) Published([]*outbox.Message, []error, []time.Duration, time.Duration) {}
func (noObserver) Settled(*Settlement)                                                  {}
func (noObserver) Changed(State, error)                                                 {}
