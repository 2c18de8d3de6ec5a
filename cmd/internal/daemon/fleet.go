package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/fleet"
	"github.com/pgoutbox/outbox/cmd/internal/fleet/home"
)

// member is this process's part in a fleet: it places parts, of which it runs its own.
type member struct {
	cfg     config.Fleet
	name    string
	home    *home.Home // nil: ordinal and count are given
	logger  *slog.Logger
	metrics fleetMetrics
	nudge   chan struct{} // a part has started or ended

	standByEvery time.Duration

	mu      sync.Mutex
	units   map[string]*unit
	parts   []fleet.Part        // of the configuration
	news    home.News           // the last
	filling map[fleet.Part]bool // what this member runs as the second choice
}

// fleetMetrics are those of a process in a fleet.
type fleetMetrics struct {
	members, frozen, ordinal prometheus.Gauge
	parts                    *prometheus.GaugeVec
	moves                    *prometheus.CounterVec
}

func newFleetMetrics(b *book) fleetMetrics {
	return fleetMetrics{
		members: b.single("fleet_members", "Members of the fleet that have an ordinal and don't leave, as this one knows."),
		frozen:  b.single("fleet_frozen", "1 while the fleet's home can't be read, so that the placement stays as it is."),
		ordinal: b.single("fleet_ordinal", "The ordinal of this member; -1 while it is a spare."),
		parts: b.gauge("fleet_parts", "Shard groups of destinations, of all databases, of which this member is the first choice, "+
			"or the second.", "choice"),
		moves: b.counter("fleet_moves_total", "Shard groups of destinations that this member has taken over, by cause: start (nobody "+
			"had it), join (this member, or one that had it, has another ordinal), leave (the one that had it stops), death (it is "+
			"dead or silent) or share (the shares have changed).", "cause"),
	}
}

// Causes of moves.
const (
	causeStart = "start"
	causeJoin  = "join"
	causeLeave = "leave"
	causeDeath = "death"
	causeShare = "share"
)

// newMember returns nil where there is no fleet.
func newMember(cfg config.Config, b *book, options Options) (*member, error) {
	if cfg.Fleet == nil {
		return nil, nil
	}
	m := &member{cfg: *cfg.Fleet, name: cfg.Name, logger: options.Logger, metrics: newFleetMetrics(b), nudge: make(chan struct{}, 1),
		standByEvery: cmp.Or(options.standByEvery, standByEvery), filling: make(map[fleet.Part]bool)}
	for _, cause := range []string{causeStart, causeJoin, causeLeave, causeDeath, causeShare} {
		m.metrics.moves.WithLabelValues(cause)
	}
	m.metrics.ordinal.Set(fleet.Spare)
	if options.Home == nil {
		ordinal, err := m.cfg.Position("")
		if err != nil {
			return nil, fmt.Errorf("fleet.ordinal: %w", err)
		}
		m.news.Ordinal = ordinal
		for o := range m.cfg.Count {
			m.news.Members = append(m.news.Members, fleet.Member{Name: fmt.Sprintf("ordinal %d", o), Ordinal: o})
		}
		return m, nil
	}
	m.news.Ordinal = fleet.Spare
	var instance outbox.ID
	_, _ = rand.Read(instance[:]) // it never fails
	m.home = home.New(home.Config{
		Config: fleet.Config{Name: m.name, Instance: instance.String(), Ordinal: m.cfg.Ordinal, Weight: float64(m.cfg.Weight),
			Settle: m.cfg.Settle, Reserve: m.cfg.Reserve},
		Conn: options.Home, Fleet: m.cfg.Name, Version: options.Version,
		Parts: m.configured, Holds: m.holds, Changed: m.take, Logger: m.logger,
	})
	return m, nil
}

// run is a member until ctx ends.
func (m *member) run(ctx context.Context) {
	if m.home == nil {
		return
	}
	looking, end := context.WithCancel(ctx)
	var looks sync.WaitGroup
	looks.Go(func() { m.standBy(looking) })
	defer looks.Wait()
	defer end()
	m.home.Run(ctx)
}

// serve takes over which units there are, for which databases. Units that aren't of the configuration any more end by
// themselves.
func (m *member) serve(units []*unit, wanted []Database) {
	m.mu.Lock()
	m.units = make(map[string]*unit)
	for _, u := range units {
		if !u.ending {
			m.units[u.Name] = u
			u.placed.notify(m.moved)
		}
	}
	m.parts = nil
	for _, db := range wanted {
		for _, d := range db.Config.Destinations {
			for group := range d.ShardGroups {
				m.parts = append(m.parts, fleet.Part{Database: db.Name, Destination: d.Name, Group: group})
			}
		}
	}
	news := m.news
	if m.home == nil {
		news.Placement = fleet.Place(m.parts, news.Members)
		news.Run, news.StandBy = news.Placement.Shares(news.Ordinal)
	}
	m.mu.Unlock()
	m.take(news)
	if m.home != nil {
		m.home.Look()
	}
}

// moved notes that a part has started or ended.
func (m *member) moved() {
	select {
	case m.nudge <- struct{}{}:
	default:
	}
}

func (m *member) configured() []fleet.Part {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.parts
}

// holds are the parts that run here, or are about to.
func (m *member) holds() (list []fleet.Part) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range m.units {
		for i, runs := range u.placed.running() {
			if runs {
				list = append(list, u.part(i))
			}
		}
	}
	return list
}

func (u *unit) part(i int) fleet.Part {
	return fleet.Part{Database: u.Name, Destination: u.parts[i].destination.Name, Group: u.parts[i].group}
}

// take does what a look at the home has led to.
func (m *member) take(news home.News) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.news
	m.news = news
	second := make(map[fleet.Part]bool, len(news.StandBy))
	for _, p := range news.StandBy {
		second[p] = true
	}
	maps.DeleteFunc(m.filling, func(p fleet.Part, _ bool) bool { return !second[p] })
	m.apply(before)
	if news.Ordinal != before.Ordinal {
		m.logger.Info("ordinal in the fleet", "fleet", m.cfg.Name, "ordinal", news.Ordinal)
	}
	if news.Conflict != "" && news.Conflict != before.Conflict {
		m.logger.Error("another member has this one's ordinal, so this one delivers nothing: give each another fleet.ordinal", "fleet",
			m.cfg.Name, "member", news.Conflict, "ordinal", m.cfg.Ordinal)
	}
	m.measure()
}

// apply has the units do what the last news says. mu is held.
func (m *member) apply(before home.News) {
	news := m.news
	choices := make(map[fleet.Part]choice, len(news.Run)+len(news.StandBy))
	for _, p := range news.StandBy {
		if m.home == nil || m.filling[p] { // without a home nobody tells this process when another one is dead
			choices[p] = secondChoice
		}
	}
	for _, p := range news.Run {
		choices[p] = firstChoice
	}
	var moves []home.Move
	counts := make(map[string]int)
	over := 0
	for _, u := range m.units {
		old, _ := u.placed.now()
		next := make([]choice, len(old))
		for i := range next {
			part := u.part(i)
			next[i] = choices[part]
			switch {
			case next[i] == firstChoice && old[i] != firstChoice:
				label, move := m.why(part, before)
				counts[label]++
				moves = append(moves, move)
			case next[i] == elsewhere && old[i] == firstChoice:
				over++
			}
		}
		u.placed.set(next)
	}
	for cause, n := range counts {
		m.metrics.moves.WithLabelValues(cause).Add(float64(n))
		m.logger.Info("parts are this member's now", "fleet", m.cfg.Name, "parts", n, "cause", cause, "ordinal", news.Ordinal)
	}
	if over > 0 {
		m.logger.Info("parts are other members' now: each is handed over when its new one waits for it", "fleet", m.cfg.Name, "parts", over)
	}
	if m.home != nil {
		m.home.Moved(moves)
	}
}

// measure sets the metrics. mu is held.
func (m *member) measure() {
	m.metrics.members.Set(float64(len(m.runners())))
	m.metrics.frozen.Set(truth(m.news.Frozen != ""))
	m.metrics.ordinal.Set(float64(m.news.Ordinal))
	m.metrics.parts.WithLabelValues("first").Set(float64(len(m.news.Run)))
	m.metrics.parts.WithLabelValues("second").Set(float64(len(m.news.StandBy)))
}

// runners are the members that have an ordinal and don't leave. mu is held.
func (m *member) runners() []fleet.Member {
	return slices.DeleteFunc(slices.Clone(m.news.Members), func(o fleet.Member) bool { return o.Leaving })
}

// why says why a part is this member's now, and from whom it came. mu is held.
func (m *member) why(part fleet.Part, before home.News) (label string, move home.Move) {
	move.Part = part
	from := before.Placement[part]
	if before.Placement == nil || from.First == fleet.Spare || from.First == before.Ordinal {
		move.Cause = causeStart
		return causeStart, move
	}
	for _, r := range before.Records {
		if r.Ordinal == from.First && !r.Leaving && r.Left.IsZero() {
			move.From = r.Name
		}
	}
	switch {
	case m.news.Ordinal != before.Ordinal:
		label, move.Cause = causeJoin, fmt.Sprintf("%s: %s has ordinal %d", causeJoin, m.name, m.news.Ordinal)
		return label, move
	case m.home == nil:
		label = causeShare
	default:
		label = causeShare
		for _, r := range m.news.Records {
			gone := r.Name == move.From && (r.Leaving || !r.Left.IsZero() || !r.Alive)
			switch {
			case gone && r.Leaving:
				label = causeLeave
			case gone:
				label = causeDeath
			default:
				continue
			}
			move.Cause = fmt.Sprintf("%s of %s: %s", label, r.Name, cmp.Or(m.news.Causes[r.Instance], "its session has ended"))
			return label, move
		}
	}
	move.Cause = label + ": the shares have changed"
	return label, move
}

// leave hands the parts of this process over, as far as others stand by for them within a few seconds.
func (m *member) leave() {
	if m.home == nil {
		return // who stands by waits for the locks
	}
	m.home.Leave()
	limit := time.NewTimer(handOverWithin)
	defer limit.Stop()
	for {
		if m.left() {
			return
		}
		select {
		case <-m.nudge:
		case <-time.After(handOverPause):
		case <-limit.C:
			m.logger.Warn("not all parts could be handed over in time: they are given up", "fleet", m.cfg.Name, "parts", len(m.holds()))
			return
		}
	}
}

// left reports whether no part runs here that somebody is there for.
func (m *member) left() bool {
	holds := m.holds()
	m.mu.Lock()
	defer m.mu.Unlock()
	others := slices.ContainsFunc(m.news.Members, func(o fleet.Member) bool { return !o.Leaving && o.Ordinal != m.news.Ordinal })
	return len(holds) == 0 || m.news.Frozen != "" || !others
}

// fleetPage is the body of /fleet.
type fleetPage struct {
	Fleet   string         `json:"fleet"`
	Member  string         `json:"member"`
	Ordinal int            `json:"ordinal"` // -1: it is a spare
	Frozen  string         `json:"frozen,omitempty"`
	Error   string         `json:"error,omitempty"`
	Members []fleet.Member `json:"members"`
	First   int            `json:"first"`
	Second  int            `json:"second"`
	Runs    int            `json:"runs"`
}

// page is what this member knows of its fleet.
func (m *member) page() fleetPage {
	runs := len(m.holds())
	m.mu.Lock()
	defer m.mu.Unlock()
	p := fleetPage{Fleet: m.cfg.Name, Member: m.name, Ordinal: m.news.Ordinal, Frozen: m.news.Frozen, Members: m.news.Members,
		First: len(m.news.Run), Second: len(m.news.StandBy), Runs: runs}
	if m.news.Err != nil {
		p.Error = m.news.Err.Error()
	}
	return p
}

func (m *member) handler() http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { writeProbe(rw, true, m.page()) })
}
