package polling

import (
	"crypto/rand"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/states"
)

// Snapshot is the default strategy: it reads what a new snapshot of the database sees and the cursor's snapshot
// doesn't. Every committed transaction becomes visible between exactly two snapshots, so none is lost or read twice,
// and an open transaction blocks no other.
//
// Order: the messages of a key come in the order in which their transactions locked that key's row, provided that the
// outbox row is inserted after that lock was taken. Messages of one window come by id, which was drawn under the lock;
// messages of different windows come in the order of their commits.
//
// Acquire may be called again after a session was closed. There can't be two sessions at once.
type Snapshot struct {
	conn        *pgx.ConnConfig
	destination string
	owner       string
	cfg         SnapshotConfig
	states      *states.Writer

	// minPage is the least number of messages that are read at once, unless they are large.
	minPage int

	active  atomic.Bool
	release func() // of the registration
}

// usualPage is how many messages are read at once. To begin a page costs the server as much as to read some 150
// messages, and a page looks at the index of up to two chunks more than it returns.
const usualPage = 4500

var _ relay.Source = (*Snapshot)(nil)

// NewSnapshot returns a source for a destination. It reports all faults of cfg together and doesn't connect yet. conn
// is copied. It must lead to the primary, with sessions of its own (see the package comment), as a role with the rights
// that schema.Grants lists for a relay.
func NewSnapshot(conn *pgx.ConnConfig, destination string, cfg SnapshotConfig) (*Snapshot, error) {
	cfg, err := cfg.withDefaults(conn, destination)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{conn: conn.Copy(), destination: destination, cfg: cfg, minPage: usualPage}
	if cfg.Registration != nil {
		s.owner, s.states = cfg.Registration.Name(), cfg.Registration.States()
	} else {
		host, _ := os.Hostname() // only shown to people
		s.owner = fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:8])
		s.states = states.New(conn, s.owner, cfg.Logger)
	}
	return s, nil
}

// Report writes the relay's state and its lag objective to the cursor, where `outbox status` reads them.
func (s *Snapshot) Report(state relay.State, err error) {
	s.states.Report(states.Cursor{Destination: s.destination, Group: s.cfg.Group, LagObjective: s.cfg.LagObjective,
		Settings: states.Settings(s.cfg.Settings)}, state, err)
}

// Traits of the outbox: one statement reads the holds of many lanes. A statement and a settlement for each lane alone
// would take most of the time of a replay.
func (s *Snapshot) Traits() relay.Traits { return relay.Traits{HoldLanes: 200} }

// Active reports whether Acquire waits, or its session isn't closed yet.
func (s *Snapshot) Active() bool { return s.active.Load() }

// released allows the next session.
func (s *Snapshot) released() {
	s.release()
	s.active.Store(false)
}

// SetOwner sets the owner of a source without a Registration, so that a later source of the same owner takes its lease
// back at once. The caller must ensure that no other source uses the name at the same time.
func (s *Snapshot) SetOwner(owner string) { s.owner = owner }
