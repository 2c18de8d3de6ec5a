package home

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/cmd/internal/fleet"
	"github.com/pgoutbox/outbox/internal/dial"
)

// Config is what a process is in its fleet.
type Config struct {
	fleet.Config

	Conn    *pgx.ConnConfig // of the home
	Fleet   string          // its name
	Version string          // of the program, for people

	// Parts and Holds return those of [fleet.View].
	Parts func() []fleet.Part
	Holds func() []fleet.Part

	// Changed is told what to do after each look, and each time that the home can't be looked at.
	Changed func(News)

	Logger *slog.Logger
}

// News is what a look has led to.
type News struct {
	fleet.Step
	Records []fleet.Record    // as they were last read
	Causes  map[string]string // why a member has left, by instance
	Err     error             // why the home can't be read
}

// Home is the place of one process in its fleet, as the home has it.
type Home struct {
	cfg  Config
	core *fleet.Core
	look chan struct{}

	mu      sync.Mutex
	leaving bool
	moves   map[fleet.Part]Move // that are not written yet
	watch   watched
	// watchChanged is closed when watch changes.
	watchChanged chan struct{}

	beats   map[string]beat // of the members, by instance
	records []fleet.Record
	causes  map[string]string
	logged  string // why it can't join, as it was last logged
}

// watched is the session whose end is waited for.
type watched struct {
	table    uint32
	lock     int32
	instance string // "" is none
}

// beat is how long the beat of a member has been the same.
type beat struct {
	at    time.Time // by the home's clock
	since time.Time // by this process's
	looks int
}

const (
	// lookEvery is how often a member looks, and says that it is there, if nothing happens.
	lookEvery = time.Second
	// A member is silent if its beat hasn't changed for silentAfter in which this process has looked silentLooks times:
	// if the home hangs, nobody is taken for dead.
	silentAfter = 4 * lookEvery
	silentLooks = 4
	// tryAgain is the pause between two attempts to reach the home.
	tryAgain = time.Second
)

// New returns the place of a process that starts.
func New(cfg Config) *Home {
	cfg.Config.Look = lookEvery
	return &Home{cfg: cfg, core: fleet.New(cfg.Config), look: make(chan struct{}, 1), moves: make(map[fleet.Part]Move),
		beats: make(map[string]beat), watchChanged: make(chan struct{})}
}

// Look has Run look now.
func (h *Home) Look() {
	select {
	case h.look <- struct{}{}:
	default:
	}
}

// Leave says that this process is about to end: the others take its parts over.
func (h *Home) Leave() {
	h.mu.Lock()
	h.leaving = true
	h.mu.Unlock()
	h.Look()
}

// Moved notes parts that this process has taken over, to be written as soon as the home can be reached.
func (h *Home) Moved(moves []Move) {
	if len(moves) == 0 {
		return
	}
	h.mu.Lock()
	for _, m := range moves {
		h.moves[m.Part] = m
	}
	h.mu.Unlock()
	h.Look()
}

// Run is a member until ctx ends. It returns when the home knows that this one has left, or can't be reached.
func (h *Home) Run(ctx context.Context) {
	watching, end := context.WithCancel(context.WithoutCancel(ctx))
	var watches sync.WaitGroup
	watches.Go(func() { h.watchOthers(watching) })
	defer watches.Wait()
	defer end()
	for ctx.Err() == nil {
		s, err := open(ctx, &h.cfg)
		if err == nil {
			err = h.stay(ctx, s)
			if ctx.Err() != nil {
				h.end(s)
				return
			}
			dial.HangUp(s.pg)
		}
		if ctx.Err() != nil {
			return
		}
		h.away(err)
		_ = dial.Pause(ctx, tryAgain) // the loop ends with ctx
	}
}

// away tells that the home can't be reached.
func (h *Home) away(err error) {
	if text := err.Error(); text != h.logged {
		h.logged = text
		h.cfg.Logger.Warn("the fleet's home can't be used: who delivers what stays as it is, and it is tried again", "fleet",
			h.cfg.Fleet, "error", err)
	}
	clear(h.beats)
	h.next(false, time.Time{}, err)
}

// next asks the core what to do.
func (h *Home) next(readable bool, now time.Time, err error) fleet.Step {
	h.mu.Lock()
	leaving := h.leaving
	h.mu.Unlock()
	step := h.core.Next(fleet.View{Readable: readable, Now: now, Records: h.records, Parts: h.cfg.Parts(), Holds: h.cfg.Holds(),
		Leaving: leaving})
	if !readable {
		h.setWatch(watched{})
	}
	h.cfg.Changed(News{Step: step, Records: h.records, Causes: h.causes, Err: err})
	return step
}

// stay looks and does what follows, until the session breaks or ctx ends.
func (h *Home) stay(ctx context.Context, s *session) error {
	for {
		now, rows, err := s.look(ctx)
		if err != nil {
			return err
		}
		h.take(rows)
		step := h.next(true, now, nil)
		wrote, err := h.write(ctx, s, step, rows)
		if err != nil {
			return err
		}
		if h.logged != "" && !step.Join {
			h.logged = ""
			h.cfg.Logger.Info("the fleet's home can be used", "fleet", h.cfg.Fleet)
		}
		var next watched
		for _, r := range rows {
			if r.Instance == step.Watch {
				next = watched{s.table, r.Lock, r.Instance}
			}
		}
		h.setWatch(next)
		if wrote {
			continue // what it has led to
		}
		if err := h.rest(ctx, s, min(max(step.Again, time.Millisecond), lookEvery)); err != nil {
			return err
		}
	}
}

// take makes records of rows, and notes how long their beats have been the same.
func (h *Home) take(rows []row) {
	h.records, h.causes = nil, make(map[string]string)
	before := h.beats
	h.beats = make(map[string]beat)
	for _, r := range rows {
		b, known := before[r.Instance]
		if !known || !b.at.Equal(r.Beat) {
			b = beat{at: r.Beat, since: time.Now()}
		}
		b.looks++
		h.beats[r.Instance] = b
		silent := b.looks > silentLooks && time.Since(b.since) > silentAfter && r.Instance != h.cfg.Instance
		record := fleet.Record{Name: r.Name, Instance: r.Instance, Ordinal: fleet.Spare, Weight: r.Weight, Version: r.Placement,
			Joined: r.Joined, Leaving: r.Leaving, Alive: r.Lives && !silent}
		if r.Ordinal != nil {
			record.Ordinal = *r.Ordinal
		}
		if r.Left != nil {
			record.Left = *r.Left
		}
		h.records, h.causes[r.Instance] = append(h.records, record), r.Cause
	}
}

// write does what a step says of the home.
func (h *Home) write(ctx context.Context, s *session, step fleet.Step, rows []row) (wrote bool, err error) {
	var errs []error
	do := func(changed bool, err error) { wrote, errs = wrote || changed, append(errs, err) }
	if step.Join {
		do(s.join(ctx))
	}
	if step.Leave {
		do(s.leave(ctx))
	}
	if step.Claim != nil {
		do(s.claim(ctx, *step.Claim))
	}
	for _, r := range rows {
		if slices.Contains(step.Dead, r.Instance) {
			do(s.bury(ctx, r))
		}
	}
	for _, instance := range step.Forget {
		do(s.forget(ctx, instance))
	}
	if err := errors.Join(errs...); err != nil {
		return wrote, err
	}
	h.mu.Lock()
	moves := h.moves
	h.moves = make(map[fleet.Part]Move)
	h.mu.Unlock()
	if len(moves) == 0 {
		return wrote, nil
	}
	list := make([]Move, 0, len(moves))
	for _, m := range moves {
		list = append(list, m)
	}
	if err := s.moved(ctx, list); err != nil {
		h.mu.Lock()
		for part, m := range moves {
			if _, later := h.moves[part]; !later {
				h.moves[part] = m
			}
		}
		h.mu.Unlock()
		return wrote, err
	}
	return wrote, nil
}

// rest waits until it is told that something has changed, has to look, or has waited long enough.
func (h *Home) rest(ctx context.Context, s *session, long time.Duration) error {
	waiting, end := context.WithTimeout(ctx, long)
	defer end()
	select {
	case <-h.look:
		return nil
	default:
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		select {
		case <-h.look:
			end()
		case <-waiting.Done():
		}
	}()
	err := s.told(waiting)
	ended := waiting.Err() != nil
	end()
	<-asked
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && (!ended || s.pg.IsClosed()) {
		return err
	}
	return nil
}

// end says that this member has left, and ends its session.
func (h *Home) end(s *session) {
	defer dial.HangUp(s.pg)
	ctx, cancel := context.WithTimeout(context.Background(), dial.HangUpTimeout)
	defer cancel()
	if s.pg.IsClosed() {
		return
	}
	if _, err := s.leave(ctx); err != nil {
		h.cfg.Logger.Debug("the fleet's home doesn't know that this member leaves", "error", err)
	}
}

func (h *Home) setWatch(w watched) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watch == w {
		return
	}
	h.watch = w
	close(h.watchChanged)
	h.watchChanged = make(chan struct{})
}

// watchOthers waits for the end of the session of the member that this one watches, and looks then.
func (h *Home) watchOthers(ctx context.Context) {
	w := &watcher{cfg: &h.cfg}
	defer w.close()
	for ctx.Err() == nil {
		h.mu.Lock()
		at, changed := h.watch, h.watchChanged
		h.mu.Unlock()
		if at.instance == "" {
			w.close()
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		waiting, end := context.WithCancel(ctx)
		var cancelling sync.WaitGroup
		cancelling.Go(func() {
			select {
			case <-changed:
				end()
			case <-waiting.Done():
			}
		})
		free, err := w.wait(waiting, at.table, at.lock)
		end()
		cancelling.Wait()
		if free {
			h.Look()
		}
		if free || err != nil {
			select {
			case <-changed: // the look shows another one
			case <-time.After(tryAgain):
			case <-ctx.Done():
			}
		}
	}
}
