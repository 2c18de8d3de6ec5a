package relay

import (
	"time"

	"github.com/pgoutbox/outbox"
)

// core decides; it performs nothing. Events go in through the on… methods, next returns the actions that
// are due, and the runner performs them and reports back. It has no I/O, no clock (every method is told
// the time) and no goroutines, so a test can drive it through any schedule.
//
// A message passes through: a page (as read, in order) → the queue of its stripe → a call → settled with
// the contiguous prefix of its page. Stripes split the shards: at most one call is in flight per stripe,
// so calls never share a key. A lane exists as an object only while its key is out of the ordinary and something is
// to be done about it: its head waits for a retry, a dead letter of it is not yet settled, or its holds in the database
// are due. Of the other lanes with holds, however many they are, only a hash is remembered (stored).
type core struct {
	cfg  coreConfig
	rand func() float64 // uniform in [0, 1)

	pages     []*page // unsettled, in the order in which they were read
	free      []*page
	unsettled int // messages in pages that are not settled
	bytes     int // their size
	prefix    prefix

	stripes []stripe
	calls   []*call // free
	lanes   map[string]*lane
	loaded  int // holds in memory

	stored  storedLanes         // the lanes of keys that have holds, or soon will
	pending map[laneKey][]*item // toHold, not settled yet, in order. Not those without a key

	dirty    bool      // a lane changed since the last scan
	lanesDue time.Time // when the next waiting lane is due
	toLoad   []*lane   // held lanes that are due, the earliest first

	outage  outage
	gates   map[Route]*gate   // outages of routes
	refused map[laneKey]*gate // lanes whose head was refused because of its topic, in this outage

	paused    map[pauseTarget]*gate
	throttle  throttle
	controlAt time.Time // when to ask for the controls again

	reading  bool
	gather   time.Time // until when small calls wait for what is being read; zero: they don't
	working  bool      // a settlement or a query about holds is under way: one at a time
	settling *settlement
	synced   bool      // the held lanes are known
	walked   string    // the last lane of the walk that learns of them
	rewalkAt time.Time // not before that time is the walk begun again, see forgetStale
	syncAt   time.Time // when to look for changed holds again
	listAt   time.Time // when to list the lanes that are due; zero while they are listed
	listing  *DueQuery // the list that is being read

	sourceFull error // why the source reads no more
	wasCrowded bool  // see crowded

	settleAt time.Time // when what is settleable must be settled; zero if nothing is
	held     heldOutcomes

	draining bool
	stopped  error // the policy "stop" has fired
}

type coreConfig struct {
	Stripes          int
	ReadMax          int // messages in a page
	CallMax          int // messages in a call
	CallBytes        int
	CallGather       int           // messages that a call is worth waiting for, while more are being read
	Gather           time.Duration // and how long
	MaxInFlight      int
	MaxInFlightBytes int
	MaxHeldLanes     int
	LanesMax         int // lanes listed at once
	WalkMax          int // the same before anything is read
	MaxLoaded        int // holds in memory
	HeldMax          int // holds loaded at once
	HeldLanes        int // lanes of which holds are loaded at once

	MaxAttempts int
	OnExhausted Policy
	Backoff     Backoff
	Outage      Backoff
	HoldAfter   time.Duration
	SettleDelay time.Duration
	Resync      time.Duration
	Rate        float64       // messages a second; 0: no bound
	Control     time.Duration // how often the controls are read; 0: never

	Select func(*outbox.Message) bool
}

func newCore(cfg coreConfig, rand func() float64) *core {
	return &core{
		cfg:      cfg,
		rand:     rand,
		stripes:  make([]stripe, cfg.Stripes),
		lanes:    make(map[string]*lane),
		stored:   newStoredLanes(),
		pending:  make(map[laneKey][]*item),
		gates:    make(map[Route]*gate),
		refused:  make(map[laneKey]*gate),
		paused:   make(map[pauseTarget]*gate),
		throttle: throttle{rate: cfg.Rate},
		listAt:   time.Unix(0, 1), // at once
	}
}

// filter marks the items that the destination doesn't select. A message at which Select panics is invalid.
func (c *core) filter(items []item) {
	if c.cfg.Select == nil {
		return
	}
	i := 0
	for i < len(items) {
		panicked := try("Select", func() {
			for ; i < len(items); i++ {
				if it := &items[i]; it.d.Invalid == nil && !c.cfg.Select(&it.d.Message) {
					it.state = unselected
				}
			}
		})
		if panicked != nil {
			items[i].d.Invalid = panicked
		}
	}
}

func (c *core) idle() bool {
	for i := range c.stripes {
		if c.stripes[i].inFlight != nil {
			return false
		}
	}
	return true
}

func (c *core) newCall(stripe int) *call {
	if n := len(c.calls); n > 0 {
		k := c.calls[n-1]
		c.calls = c.calls[:n-1]
		*k = call{Batch: k.Batch[:0], items: k.items[:0], ages: k.ages, stripe: stripe}
		return k
	}
	return &call{stripe: stripe}
}

// freeCall takes back a call that is over.
func (c *core) freeCall(k *call) {
	clear(k.Batch)
	clear(k.items)
	k.lanes = nil
	c.calls = append(c.calls, k)
}

// laneOf returns the lane in memory that an item belongs to, or nil.
func (c *core) laneOf(it *item) *lane {
	if len(c.lanes) == 0 {
		return nil
	}
	return c.lanes[it.d.Lane()]
}
