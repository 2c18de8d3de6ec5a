package discover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
)

// source is one of the configuration, with what it has found.
type source struct {
	index  int // in the configuration
	cfg    config.Discovery
	origin string
	looker looker
	due    chan struct{} // it is to be looked at, though its time hasn't come

	looking sync.Mutex // one look at a time; taken before that of Sources

	has      map[string]held // by the name that the source gives, as it is here; a file may give its entry another one
	withheld []string
	faults   map[string]string // as has
	clashes  map[string]string // by the entry's name
	said     map[string]string // the clashes before
	failed   error             // why the last look failed
	failures int
	at       time.Time
}

// held is a database that is delivered from, if no other has its name.
type held struct {
	item  string // the name that the source gives
	found load.Found
	entry config.Entry
	at    string
}

// item is a database as a source tells of it.
type item struct {
	name  string
	found load.Found // without its name
	fault string     // why it can't be delivered from as it is now
}

// looker asks one source. known are the items that are delivered from.
type looker interface {
	look(ctx context.Context, known map[string]bool) ([]item, error)
}

// kind makes what asks the source.
func (src *source) kind(loaded *load.Loaded, open Open) looker {
	switch cfg := &src.cfg; {
	case cfg.Cluster != nil:
		return &cluster{cfg: *cfg.Cluster, takes: cfg.Takes, open: open, origin: src.origin + ".cluster.url",
			checks: make(map[string]checked)}
	case cfg.Query != nil:
		return &query{cfg: *cfg.Query, open: open, origin: src.origin + ".query.url"}
	default:
		return &folder{path: loaded.Beside(cfg.Folder.Path)}
	}
}

// key is what one in has is among all sources.
func (src *source) key(of string) string { return src.cfg.Name + "/" + of }

// take takes over what a look has found, and reports whether it has something else now. What fails leaves what was
// there.
func (src *source) take(loaded *load.Loaded, items []item, err error, logger *slog.Logger) bool {
	logger = logger.With("source", src.cfg.Name)
	if err != nil {
		src.failures++
		if src.failed == nil || err.Error() != src.failed.Error() {
			logger.Warn("databases can't be looked for, so those that were found before are kept", "error", err, "databases", len(src.has))
		}
		src.failed = err
		return false
	}
	if src.failed != nil {
		logger.Info("databases can be looked for again")
	}
	src.failed, src.at = nil, time.Now()

	slices.SortFunc(items, func(a, b item) int { return strings.Compare(a.name, b.name) })
	present, faults := make(map[string]bool), make(map[string]string)
	var added, changed []string
	for _, it := range items {
		if !src.cfg.Takes(it.name) {
			continue
		}
		name, ok := src.cfg.NameOf(it.name)
		if !ok {
			faults[it.name] = "no name can be made of it: " + config.NameRule
			continue
		}
		if present[name] {
			faults[it.name] = fmt.Sprintf("another one has the name %q as well", name)
			continue
		}
		present[name] = true
		if it.fault != "" {
			faults[name] = it.fault
			continue
		}
		it.found.Name = name
		old, before := src.has[name]
		if before && same(old.found, it.found) {
			continue
		}
		entry, err := loaded.Entry(src.index, it.found)
		if err != nil {
			faults[name] = reason(err)
			continue
		}
		src.has[name] = held{it.name, it.found, entry, whereabouts(entry.Database.URL.Text())}
		if before {
			changed = append(changed, name)
		} else {
			added = append(added, name)
		}
	}
	src.say(logger, faults)
	removed := src.vanish(present, logger)
	for what, names := range map[string][]string{"databases discovered": added, "databases have changed": changed,
		"databases are gone": removed} {
		if len(names) > 0 {
			logger.Info(what, "names", some(names), "databases", len(src.has))
		}
	}
	return len(added)+len(changed)+len(removed) > 0
}

func same(a, b load.Found) bool {
	return a.URL == b.URL && a.ViewerURL == b.ViewerURL && string(a.Text) == string(b.Text) && (a.Text == nil) == (b.Text == nil)
}

// vanish removes what isn't present any more, and returns what that was: nothing if it is too much at once, or all. An
// answer without any database is more often a mistake of who answers than the end of all.
func (src *source) vanish(present map[string]bool, logger *slog.Logger) []string {
	var gone []string
	for _, name := range slices.Sorted(maps.Keys(src.has)) {
		if !present[name] {
			gone = append(gone, name)
		}
	}
	most := src.cfg.MayVanish(len(src.has))
	all := len(gone) == len(src.has)
	if len(gone) > 0 && (all || len(gone) > most) {
		if !slices.Equal(gone, src.withheld) {
			advice := fmt.Sprintf("if they are to go, set max_vanish of the source to %d, and have the configuration read again (SIGHUP); "+
				"then set it back", len(gone))
			if all {
				advice = "if they are to go, take the source out of discover, and have the configuration read again (SIGHUP)"
			}
			logger.Error("more databases would vanish at once than max_vanish allows, so all are kept", "names", some(gone),
				"vanished", len(gone), "databases", len(src.has), "most", most, "next", advice)
		}
		src.withheld = gone
		return nil
	}
	src.withheld = nil
	for _, name := range gone {
		delete(src.has, name)
	}
	return gone
}

// say logs the faults that are new.
func (src *source) say(logger *slog.Logger, faults map[string]string) {
	for name, text := range faults {
		if src.faults[name] != text {
			_, kept := src.has[name]
			logger.Warn("a database can't be delivered from as its source says; others are", "database", name, "error", text, "kept", kept)
		}
	}
	src.faults = faults
}

func (src *source) clash(name, text string, logger *slog.Logger) {
	src.clashes[name] = text
	if src.said[name] != text {
		logger.Warn("a database is left out", "source", src.cfg.Name, "database", name, "error", text)
	}
}

// some are the names that a line of the log has.
func some(names []string) string {
	const most = 20
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// reason is an error in one line.
func reason(err error) string {
	var faults findings.Faults
	if !errors.As(err, &faults) {
		return err.Error()
	}
	lines := make([]string, len(faults))
	for i, f := range faults {
		lines[i] = f.String()
	}
	return strings.Join(lines, "; ")
}
