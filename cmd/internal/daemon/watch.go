package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/console"
	"github.com/pgoutbox/outbox/relay"
)

// watch looks at the database every few seconds, and is told what the relay does: so scrapes and probes cost the
// database nothing, and are answered when it hangs.
type watch struct {
	conn         func(context.Context) (*pgx.Conn, error)
	relay        string
	database     string // that commands name; "" for the only one
	destinations []string
	outbox       bool        // a destination reads it, so it has to be there; otherwise the tables alone are looked at
	crowded      func() bool // whether others wait for a session with the server
	metrics      *metrics
	history      *console.History
	logger       *slog.Logger

	mu     sync.Mutex
	report *health.Report // the last that could be read, or an empty one
	readAt time.Time      // by this process's clock, when that look began
	err    error          // of the last look
	live   map[shardGroup]health.Live
	tables map[shardGroup]func() health.OwnTable
	seen   time.Time // when somebody looked at the console
	quiet  quiet
	sleeps bool // the database is dormant: only a person at the console has it looked at
	leads  bool // this process has the database's first part
	wake   chan struct{}
}

// shardGroup is one of a destination.
type shardGroup struct {
	destination string
	group       int
}

const (
	// lookEvery is the pause between two looks, lookSoon while somebody looks at the console; a look that takes long,
	// since the backlog is long, is taken less often, as far as health.ReadWithin allows. lookAgain is the pause after
	// one that failed.
	lookEvery = 4 * time.Second
	lookAgain = 2 * time.Second
	lookSoon  = time.Second

	// lookFor is how long a look may take: two looks and a pause fit into health.ReadWithin. A statement of one ends
	// before, in the server too.
	lookFor      = 7 * time.Second
	statementFor = 5 * time.Second
)

func newWatch(relay string, m *metrics, logger *slog.Logger, conn func(context.Context) (*pgx.Conn, error)) *watch {
	return &watch{conn: conn, relay: relay, metrics: m, history: console.NewHistory(), logger: logger,
		crowded: func() bool { return false },
		report:  &health.Report{}, live: make(map[shardGroup]health.Live), tables: make(map[shardGroup]func() health.OwnTable),
		leads: true, wake: make(chan struct{}, 1)}
}

// starting notes a shard group that this relay is to work on, unless it is known.
func (w *watch) starting(destination string, group int, ofOutbox bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outbox = w.outbox || ofOutbox
	at := shardGroup{destination, group}
	if _, known := w.live[at]; known {
		return
	}
	if !slices.Contains(w.destinations, destination) {
		w.destinations = append(w.destinations, destination)
	}
	owner := w.relay
	if !ofOutbox {
		owner = tableOwner(w.relay, destination)
	}
	w.live[at] = health.Live{Destination: destination, Group: group, Owner: owner, State: "starting", Since: time.Now()}
	w.nudge()
}

// ofOutbox reports whether a destination reads the outbox.
func (w *watch) ofOutbox() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.outbox
}

// gone notes that a shard group is another relay's.
func (w *watch) gone(destination string, group int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := shardGroup{destination, group}
	delete(w.live, at)
	delete(w.tables, at)
	for other := range w.live {
		if other.destination == destination {
			return
		}
	}
	if i := slices.Index(w.destinations, destination); i >= 0 {
		w.destinations = slices.Delete(w.destinations, i, i+1)
		w.metrics.forget(destination)
	}
}

// leading notes whether this relay is the one that does what is done once for the database.
func (w *watch) leading(is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leads = is
}

// nudge has run look again, where it rests. mu is held.
func (w *watch) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// rests reports whether nothing asks for a look: others work on the database, and nobody looks at the console.
func (w *watch) rests() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return (len(w.live) == 0 || w.sleeps) && time.Since(w.seen) > health.ReadWithin
}

// holds reports whether a part's source is this process's.
func (w *watch) holds(p part) bool { return w.holdsGroup(shardGroup{p.destination.Name, p.group}) }

func (w *watch) holdsGroup(at shardGroup) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch relay.State(w.live[at].State) {
	case relay.StateFlowing, relay.StateFailing, relay.StateStalled, relay.StateFull:
		return true
	}
	return false
}

// reads notes a shard group with a table of its own, and how to ask what is known of it.
func (w *watch) reads(destination string, group int, table func() health.OwnTable) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tables[shardGroup{destination, group}] = table
}

// own lists what is known of the destinations with tables of their own.
func (w *watch) own() (list []health.OwnTable) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range slices.SortedFunc(maps.Keys(w.tables), shardGroup.compare) {
		list = append(list, w.tables[at]())
	}
	return list
}

// note takes over what a part of the relay does now.
func (w *watch) note(destination string, group int, state relay.State, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, known := w.live[shardGroup{destination, group}]
	if !known {
		return // it is another relay's
	}
	if l.State != string(state) {
		l.State, l.Since = string(state), time.Now()
	}
	if err != nil {
		l.Cause = err.Error()
	}
	w.live[shardGroup{destination, group}] = l
}

func (w *watch) run(ctx context.Context) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			connect.Close(conn)
		}
	}()
	var working sync.WaitGroup
	defer working.Wait()
	idle := make(chan struct{}, 1)
	idle <- struct{}{}
	for first := true; ctx.Err() == nil; {
		if w.rests() {
			if conn != nil {
				connect.Close(conn)
				conn = nil
			}
			select {
			case <-w.wake:
			case <-ctx.Done():
			}
			continue
		}
		began := time.Now()
		var ok bool
		conn, ok = w.look(ctx, conn)
		took, pause := time.Since(began), lookAgain/2+rand.N(lookAgain) // databases of one server don't come back together
		if ok {
			if w.jobs() {
				select {
				case <-idle:
					working.Go(func() { w.work(ctx); idle <- struct{}{} })
				default: // it works on them
				}
			}
			pause = max(min(max(w.every(), 20*took), health.ReadWithin-2*took), time.Second)
			if first { // databases that began together don't go on together
				pause, first = max(rand.N(pause), time.Second), false
			}
			if conn != nil && w.crowded() { // the connection is needed elsewhere
				connect.Close(conn)
				conn = nil
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// every is the pause between two looks that take no time.
func (w *watch) every() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case time.Since(w.seen) < lookEvery:
		return lookSoon
	case w.quiet.digest != "":
		return quietEvery
	}
	return lookEvery
}

// look takes one, and returns the connection for the next time, nil if it broke or none is needed.
func (w *watch) look(ctx context.Context, conn *pgx.Conn) (_ *pgx.Conn, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	if w.unchanged(ctx) {
		return conn, true
	}
	began := time.Now()
	_, digest, _ := w.askDigest(ctx) // the look has the error
	var err error
	if conn == nil {
		conn, err = w.conn(ctx)
	}
	var found *health.Report
	if err == nil {
		found, err = health.StatusWith(ctx, verbs.Bounded(conn, statementFor), w.own(), !w.ofOutbox())
	}
	if err != nil {
		w.logger.Debug("the database could not be looked at", "error", err)
	}
	quiet := err == nil && w.staysTrue(found, digest)
	if conn != nil && (err != nil || quiet) {
		connect.Close(conn)
		conn = nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.quiet.digest, w.quiet.since = "", began; quiet {
		w.quiet.digest = digest
	}
	if w.err = err; err != nil {
		return nil, false
	}
	w.take(found, began)
	return conn, true
}

// take notes a report that was read by a look that began then. It is called with mu.
func (w *watch) take(found *health.Report, began time.Time) {
	w.report, w.readAt, w.err = found, began, nil
	w.history.Add(w.report, time.Now())
	if !w.metrics.shared { // otherwise it is summed up at the scrape
		w.metrics.sample(w.report, w.mine)
	}
}

// elsewhere reports whether no part of the database is this relay's.
func (w *watch) elsewhere() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.live) == 0
}

// mine reports whether this relay delivers to the destination.
func (w *watch) mine(destination string) bool { return slices.Contains(w.destinations, destination) }

// jobs reports whether a job is started and not ended.
func (w *watch) jobs() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leads && len(w.report.Jobs) > 0
}

// work carries out jobs, on a connection that lasts as long as they do.
func (w *watch) work(ctx context.Context) {
	conn, err := w.conn(ctx)
	if err == nil {
		defer connect.Close(conn)
		err = jobs.RunAll(ctx, conn)
	}
	if err != nil && ctx.Err() == nil {
		w.logger.Warn("a job could not be carried out, and will be tried again", "error", err)
	}
}

// healthPage is the body of /healthz/destinations.
type healthPage struct {
	Sentence string `json:"sentence"`
	health.Verdict
	Age          float64                   `json:"age_seconds"` // of what is known from the database
	Relay        string                    `json:"relay"`
	Destinations map[string]health.Verdict `json:"destinations"`
}

// notHere is what a relay knows of a database of which it has no part.
const notHere = "other members of the fleet deliver from this database"

// health is the verdict on what this relay delivers to, as it is now.
func (w *watch) health() healthPage {
	w.mu.Lock()
	defer w.mu.Unlock()
	report, age := w.report, w.age()
	if len(w.live) == 0 {
		verdict := health.Verdict{Finding: health.Finding{State: health.StateIdle, Cause: notHere}, At: time.Now()}
		return healthPage{verdict.Sentence(), verdict, age.Seconds(), w.relay, map[string]health.Verdict{}}
	}
	verdict, each := w.now(report, age).On(w.destinations)
	return healthPage{verdict.Sentence(), verdict, age.Seconds(), w.relay, each}
}

// current is the report on all destinations of the database as it is now. The console asks for it, so looks become more
// frequent.
func (w *watch) current() (r *health.Report, age time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen, age = time.Now(), w.age()
	w.nudge()
	return w.now(w.report, age), age, w.err
}

// summary is current without making looks more frequent, for the page of all databases.
func (w *watch) summary() (*health.Report, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	report, age := w.report, w.age()
	return w.now(report, age), age
}

// now is a report with what the parts do, and the commands for this database.
func (w *watch) now(report *health.Report, age time.Duration) *health.Report {
	r := report.Amended(w.works(), age, w.err)
	r.OnDatabase(w.database)
	return r
}

func (w *watch) age() time.Duration {
	if w.readAt.IsZero() {
		return 0
	}
	return time.Since(w.readAt)
}

// works lists what the parts do, in order.
func (w *watch) works() []health.Live {
	var list []health.Live
	for _, at := range slices.SortedFunc(maps.Keys(w.live), shardGroup.compare) {
		list = append(list, w.live[at])
	}
	return list
}

func (a shardGroup) compare(b shardGroup) int {
	return cmp.Or(strings.Compare(a.destination, b.destination), a.group-b.group)
}

// gaveUp lists the parts that have ended for good, with the cause.
func (w *watch) gaveUp() (list []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.works() {
		if l.State == string(relay.StateStopped) && l.Cause != "" {
			list = append(list, "gave up: "+l.Destination+": "+l.Cause)
		}
	}
	return list
}

// readiness is the body of /readyz.
type readiness struct {
	Ready bool          `json:"ready"`
	Cause string        `json:"cause,omitempty"`
	Relay string        `json:"relay"`
	Work  []health.Live `json:"work"`
}

// readiness reports whether this process can do its work: each part delivers, or stands by, and the database answers.
// What a broker says is no part of it.
func (w *watch) readiness() readiness {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := readiness{Relay: w.relay, Work: w.works()}
	if len(r.Work) == 0 {
		r.Ready = true // there is nothing to do here
		return r
	}
	answers := !w.readAt.IsZero() && w.age() <= health.ReadWithin
	for _, l := range r.Work {
		switch relay.State(l.State) {
		case relay.StateFlowing, relay.StateFailing, relay.StateStalled, relay.StateFull:
			answers = true // it would be broken otherwise
		case relay.StateWaiting, health.DormantState:
		default:
			r.Cause = l.Destination + ": " + l.State
			if l.Cause != "" {
				r.Cause += ": " + l.Cause
			}
			return r
		}
	}
	if r.Ready = answers; !answers {
		r.Cause = "the database does not answer"
		if w.err != nil {
			r.Cause = w.err.Error()
		}
		return r
	}
	// A right that was taken away is known before something needs it.
	verdict, _ := w.now(w.report, w.age()).On(w.destinations)
	for _, f := range append([]health.Finding{verdict.Finding}, verdict.Also...) {
		if f.State == health.StateBroken {
			r.Ready, r.Cause = false, f.Destination+": broken: "+f.Cause
			break
		}
	}
	return r
}
