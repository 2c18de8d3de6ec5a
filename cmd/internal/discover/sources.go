// Package discover finds databases where the configuration says that they are looked for: in clusters, by queries, in
// folders. It says what has come, changed and gone; the daemon takes that over as a changed configuration.
package discover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
)

// Open connects to a database; origin says where its address was found.
type Open func(ctx context.Context, url, origin string) (*pgx.Conn, error)

// Sources are those of a configuration, with what each has found. It is safe for concurrent use.
type Sources struct {
	open   Open
	logger *slog.Logger

	configured chan struct{} // another configuration has come

	mu      sync.Mutex
	begun   bool
	loaded  *load.Loaded
	list    []*source
	given   []place // of the databases that the configuration names
	merged  []config.Entry
	belongs map[string]string // whose a name in merged is: source.key
}

// Status is what is known of a source.
type Status struct {
	Source    string    `json:"source"`
	LookedAt  time.Time `json:"looked_at,omitzero"` // the last time that it answered
	Databases []string  `json:"databases"`
	Withheld  []string  `json:"withheld,omitempty"` // they are gone, and delivered from all the same: too many at once
	LeftOut   []LeftOut `json:"left_out,omitempty"`
	Err       error     `json:"-"`               // of the last look
	Error     string    `json:"error,omitempty"` // its text
	Failures  int       `json:"failures"`        // looks, since the start
}

// LeftOut is a database that a source names and that can't be delivered from, or not as it says now.
type LeftOut struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
	Kept   bool   `json:"kept,omitempty"` // it is delivered from as it was before
}

// place is where a database is, which two names must not have.
type place struct{ name, at string }

// New has found nothing yet.
func New(loaded *load.Loaded, open Open, logger *slog.Logger) *Sources {
	s := &Sources{open: open, logger: logger, configured: make(chan struct{}, 1)}
	s.Configure(loaded)
	return s
}

// Configure takes over another configuration. A source keeps by its name what it has found, also if its settings are
// others now: what it finds next is compared with that. Run looks at all of them at once.
func (s *Sources) Configure(loaded *load.Loaded) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded, s.given = loaded, nil
	for _, e := range loaded.Config.Databases {
		s.given = append(s.given, place{e.Name, whereabouts(e.Database.URL.Text())})
	}
	before := s.list
	s.list = nil
	for i, cfg := range loaded.Config.Discover {
		next := &source{index: i, cfg: cfg, origin: fields.Element("discover", i), due: make(chan struct{}, 1), has: make(map[string]held)}
		next.looker = next.kind(loaded, s.open)
		if n := slices.IndexFunc(before, func(old *source) bool { return old.cfg.Name == cfg.Name }); n >= 0 {
			old := before[n]
			if old.index == i && reflect.DeepEqual(old.cfg, cfg) {
				next = old
			} else {
				next.failures, next.failed, next.at, next.withheld = old.failures, old.failed, old.at, old.withheld
				next.faults = old.faults
			}
			for key, h := range old.has {
				if entry, err := loaded.Entry(i, h.found); err == nil {
					h.entry = entry
				}
				next.has[key] = h
			}
		}
		s.list = append(s.list, next)
	}
	s.merge()
	if s.begun {
		for _, src := range s.list {
			signal(src.due)
		}
	}
	s.begun = true
	signal(s.configured)
}

// signal wakes who waits for a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Entries are the databases that have been found, as entries of the configuration.
func (s *Sources) Entries() []config.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.merged
}

// Status is that of each source.
func (s *Sources) Status() (all []Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, src := range s.list {
		st := Status{Source: src.cfg.Name, LookedAt: src.at, Databases: []string{}, Withheld: src.withheld, Err: src.failed,
			Failures: src.failures}
		if src.failed != nil {
			st.Error = src.failed.Error()
		}
		for _, key := range slices.Sorted(maps.Keys(src.has)) {
			if name := src.has[key].entry.Name; s.belongs[name] == src.key(key) {
				st.Databases = append(st.Databases, name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(src.faults)) {
			_, kept := src.has[name]
			st.LeftOut = append(st.LeftOut, LeftOut{name, src.faults[name], kept})
		}
		for _, name := range slices.Sorted(maps.Keys(src.clashes)) {
			st.LeftOut = append(st.LeftOut, LeftOut{Name: name, Reason: src.clashes[name]})
		}
		all = append(all, st)
	}
	return all
}

// Look looks at all sources once, at the same time, and returns when each has answered or failed.
func (s *Sources) Look(ctx context.Context) {
	s.mu.Lock()
	list := slices.Clone(s.list)
	s.mu.Unlock()
	var looking sync.WaitGroup
	for _, src := range list {
		looking.Go(func() { s.look(ctx, src) })
	}
	looking.Wait()
}

// Run looks at each source as often as it says, until ctx ends. changed is called when the databases are others.
func (s *Sources) Run(ctx context.Context, changed func()) {
	var watching sync.WaitGroup
	defer watching.Wait()
	watched := make(map[*source]context.CancelFunc)
	for {
		s.mu.Lock()
		list := slices.Clone(s.list)
		s.mu.Unlock()
		for src, stop := range watched {
			if !slices.Contains(list, src) {
				stop()
				delete(watched, src)
			}
		}
		for _, src := range list {
			if watched[src] != nil {
				continue
			}
			own, stop := context.WithCancel(ctx)
			watched[src] = stop
			watching.Go(func() {
				for {
					select {
					case <-own.Done():
						return
					case <-src.due:
					case <-time.After(src.cfg.Every):
					}
					if s.look(own, src) {
						changed()
					}
				}
			})
		}
		select {
		case <-ctx.Done():
			for _, stop := range watched {
				stop()
			}
			return
		case <-s.configured:
		}
	}
}

// lookWithin bounds one look.
const lookWithin = 30 * time.Second

// look looks at a source, and reports whether the databases are others then.
func (s *Sources) look(ctx context.Context, src *source) (others bool) {
	src.looking.Lock()
	defer src.looking.Unlock()
	bounded, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	s.mu.Lock()
	known := make(map[string]bool, len(src.has))
	for _, h := range src.has {
		known[h.item] = true
	}
	loaded := s.loaded
	s.mu.Unlock()
	items, err := src.looker.look(bounded, known)
	if ctx.Err() != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.list, src) {
		return false // another configuration has come
	}
	if !src.take(loaded, items, err, s.logger) {
		return false
	}
	before := s.merged
	s.merge()
	return !reflect.DeepEqual(before, s.merged)
}

// merge puts together what all sources have. A name and a database are one source's: the configuration's own go first,
// then what has been there before.
func (s *Sources) merge() {
	names, places := make(map[string]string), make(map[string]string)
	for _, p := range s.given {
		names[p.name], places[p.at] = "the list databases", p.name
	}
	belongs := make(map[string]string)
	for _, src := range s.list {
		src.said, src.clashes = src.clashes, make(map[string]string)
	}
	for _, older := range []bool{true, false} {
		for _, src := range s.list {
			for _, key := range slices.Sorted(maps.Keys(src.has)) {
				h := src.has[key]
				name := h.entry.Name
				if (s.belongs[name] == src.key(key)) != older {
					continue
				}
				if other, taken := names[name]; taken {
					src.clash(name, fmt.Sprintf("%s has a database of that name, which was there before: give a prefix, or leave "+
						"one out by except", other), s.logger)
					continue
				}
				if other, taken := places[h.at]; taken && h.at != "" {
					src.clash(name, fmt.Sprintf("it is the same database as %s, which was there before: leave one out by "+
						"except", other), s.logger)
					continue
				}
				names[name], places[h.at] = "source "+src.cfg.Name, name
				belongs[name] = src.key(key)
			}
		}
	}
	s.belongs, s.merged = belongs, nil
	for _, src := range s.list {
		for _, key := range slices.Sorted(maps.Keys(src.has)) {
			if entry := src.has[key].entry; belongs[entry.Name] == src.key(key) {
				s.merged = append(s.merged, entry)
			}
		}
	}
}

// whereabouts are host, port and name of a database, "" if the address can't be read.
func whereabouts(url string) string {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s:%d/%s", strings.ToLower(cfg.Host), cfg.Port, cfg.Database)
}

// Failed is an error that has the sources that didn't answer, nil if all did.
func Failed(all []Status) error {
	var errs []error
	for _, s := range all {
		if s.Error != "" {
			errs = append(errs, fmt.Errorf("source %s: databases can't be looked for: %s", s.Source, s.Error))
		}
	}
	return errors.Join(errs...)
}
