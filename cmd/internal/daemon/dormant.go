package daemon

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/registration"
)

// errDormant ends the work on a database in which nothing has happened for as long as the setting dormant says.
var errDormant = errors.New("nothing happens in the database")

// leaveWithin bounds how long the end of a relay waits for its row to be removed.
const leaveWithin = 2 * time.Second

// names are the unit's destinations.
func (u *unit) names() (list []string) {
	for _, d := range u.cfg.Destinations {
		list = append(list, d.Name)
	}
	return list
}

// maySleep reports whether the unit may be dormant at all: a table of its own tells nobody that it has rows, and a slot
// keeps the log of the whole server until it is read.
func (u *unit) maySleep() bool {
	return u.cfg.Dormant > 0 && !slices.ContainsFunc(u.parts, func(p part) bool {
		return p.destination.Source != nil || p.destination.Replication != nil
	})
}

// untilDormant returns a context that ends when ctx does, or with errDormant when nothing has happened for long enough.
// stop is called at the end, before the registration is closed.
func (u *unit) untilDormant(ctx context.Context) (_ context.Context, stop func()) {
	if !u.maySleep() || u.registration == nil {
		return ctx, func() {}
	}
	return endedBy(ctx, errDormant, u.tires)
}

// tires waits until nothing has happened for as long as the setting says. It returns false when ctx has ended.
func (u *unit) tires(ctx context.Context) bool {
	var last string
	since := time.Now()
	for dial.Pause(ctx, min(u.cfg.Dormant/4, quietEvery)) == nil {
		began := time.Now()
		_, digest, err := u.watch.askDigest(ctx)
		if err != nil || digest != last {
			last, since = digest, began
			continue
		}
		if time.Since(since) < u.cfg.Dormant || !u.flows() {
			continue
		}
		if report, err := u.ask(ctx); err == nil && !report.Waits(u.names()) {
			return true
		}
	}
	return false
}

// flows reports whether each part that is here has its lease and no trouble. One that stands by for another relay would
// take the lease of that one otherwise, as soon as that one is dormant, and give it back.
func (u *unit) flows() bool {
	choices, _ := u.placed.now()
	u.watch.mu.Lock()
	defer u.watch.mu.Unlock()
	for i, p := range u.parts {
		if here(choices[i]) && u.watch.live[shardGroup{p.destination.Name, p.group}].State != string(relay.StateFlowing) {
			return false
		}
	}
	return true
}

// ask reads the whole report on a connection of its own.
func (u *unit) ask(ctx context.Context) (*health.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	conn, err := u.watch.conn(ctx)
	if err != nil {
		return nil, err
	}
	defer connect.Close(conn)
	return health.StatusWith(ctx, verbs.Bounded(conn, statementFor), nil, false)
}

// silence is how long a dormant relay may be silent before others take it for dead.
func (u *unit) silence() time.Duration { return 3*u.cfg.DormantPoll + time.Minute }

// sleep has no connection to the database until something waits there, it can't be asked, or other parts are here. The
// caller begins again then. The first look is at once: what was committed while the leases were given back waits.
func (u *unit) sleep(ctx context.Context, dormant *registration.Dormant) {
	u.logger.Info("dormant: nothing happens in the database, so the relay has no connection to it", "looks_every", u.cfg.DormantPoll)
	choices, changed := u.placed.now()
	u.asleep(choices, true)
	defer u.asleep(choices, false)
	s := sleeper{unit: u, dormant: dormant}
	for {
		cause, err := s.look(ctx)
		switch {
		case ctx.Err() != nil:
			s.leave(ctx)
			return
		case err != nil:
			u.logger.Warn("the dormant database can't be looked at, so the relay begins again", "error", err)
			return
		case cause != "":
			u.logger.Info("not dormant any more", "cause", cause)
			return
		}
		if !s.wait(ctx, u.cfg.DormantPoll-rand.N(u.cfg.DormantPoll/10+1), changed) {
			s.leave(ctx)
			return
		}
	}
}

// asleep notes whether the parts that are here are dormant.
func (u *unit) asleep(choices []choice, is bool) {
	u.watch.mu.Lock()
	u.watch.sleeps = is
	u.watch.nudge()
	u.watch.mu.Unlock()
	state := relay.State("starting")
	if is {
		state = health.DormantState
	}
	for i, p := range u.parts {
		if here(choices[i]) {
			u.watch.note(p.destination.Name, p.group, state, nil)
			u.placed.run(i, is)
		}
	}
}

// sleeper looks at a dormant database.
type sleeper struct {
	unit    *unit
	dormant *registration.Dormant
	digest  string
	report  *health.Report
	readAt  time.Time // by this process's clock
}

// look returns why the relay has to begin again, "" if nothing waits. A digest doesn't have all that may wait: an id
// that was drawn before may be committed now, so the backlogs are read as well.
func (s *sleeper) look(ctx context.Context) (cause string, err error) {
	u := s.unit
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	conn, err := u.watch.conn(ctx)
	if err != nil {
		return "", err
	}
	defer connect.Close(conn)
	if err := s.dormant.Beat(ctx, conn, u.silence()); err != nil {
		return "", err
	}
	began := time.Now()
	at, digest, err := health.Digest(ctx, conn)
	if err != nil {
		return "", err
	}
	db := verbs.Bounded(conn, statementFor)
	if s.report != nil && digest == s.digest {
		backlogs, err := health.Backlogs(ctx, db)
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(backlogs, func(b health.Backlog) bool {
			return b.Pending.N > 0 && slices.Contains(u.names(), b.Destination)
		}) {
			return "messages wait", nil
		}
		s.report, s.readAt = s.report.Unchanged(at), began
		s.date()
		return "", nil
	}
	report, err := health.StatusWith(ctx, db, nil, false)
	if err != nil {
		return "", err
	}
	if report.Waits(u.names()) {
		return "something waits for the relay, or is in its way", nil
	}
	s.report, s.digest, s.readAt = report, digest, began
	s.date()
	return "", nil
}

// date gives the watch the last report, as if it were read now: between two looks nobody can say otherwise.
func (s *sleeper) date() {
	w := s.unit.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.take(s.report.Unchanged(s.report.At.Add(now.Sub(s.readAt))), now)
}

// wait waits for the next look. It returns false if the relay has to begin again instead.
func (s *sleeper) wait(ctx context.Context, pause time.Duration, changed <-chan struct{}) bool {
	due := time.NewTimer(pause)
	defer due.Stop()
	dates := time.NewTicker(lookEvery)
	defer dates.Stop()
	for {
		select {
		case <-due.C:
			return true
		case <-dates.C:
			s.date()
		case <-changed:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// leave removes the relay's row, if the database answers soon. Otherwise the row expires.
func (s *sleeper) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWithin)
	defer cancel()
	conn, err := s.unit.watch.conn(ctx)
	if err == nil {
		defer connect.Close(conn)
		err = s.dormant.Leave(ctx, conn)
	}
	if err != nil {
		s.unit.logger.Debug("the registration of a dormant relay is not removed", "error", err)
	}
}
