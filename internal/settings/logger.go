package settings

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Logger returns l, or the program's default: trouble that goes to no log would not be noticed. Of level info and
// above, at most LogLines lines a minute are written, and as many of level error, so that repeated errors don't hide
// others. The rest is counted, and the count is written with the ids of a few messages: a fault that a million messages
// have must not fill a disk. Loggers that are made from the result share the bound.
func Logger(l *slog.Logger) *slog.Logger {
	l = cmp.Or(l, slog.Default())
	if _, bounded := l.Handler().(*quiet); bounded {
		return l
	}
	return slog.New(&quiet{l.Handler(), &budget{}})
}

// Flush writes the counts that a Logger still has. Call it when what logs to it ends.
func Flush(l *slog.Logger) {
	if q, ok := l.Handler().(*quiet); ok {
		q.budget.turn(time.Now(), true)
	}
}

const (
	// LogLines is how many lines of a LogWindow are written before the others are counted.
	LogLines  = 12
	LogWindow = time.Minute

	logSample = 3
)

// quiet is a handler whose lines are bounded. Lines of level debug pass.
type quiet struct {
	slog.Handler
	budget *budget
}

// budget is shared by a handler and those made from it.
type budget struct {
	mu      sync.Mutex
	began   time.Time
	lines   int
	errors  int         // of lines of level error, which have a bound of their own
	skipped []*skipped  // in the order in which they began
	timer   *time.Timer // writes skipped if no further line does
}

// skipped counts the lines with one text that were not written.
type skipped struct {
	handler slog.Handler
	first   time.Time // when the first of them came
	last    slog.Record
	n       int
	ids     []string // of the first messages
	rows    []string // of a table that exists, which the first messages are
}

func (q *quiet) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &quiet{q.Handler.WithAttrs(attrs), q.budget}
}

func (q *quiet) WithGroup(name string) slog.Handler {
	return &quiet{q.Handler.WithGroup(name), q.budget}
}

func (q *quiet) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo || !q.budget.skips(q.Handler, r) {
		return q.Handler.Handle(ctx, r)
	}
	return nil
}

// skips decides about a line, and counts it if it is not to be written.
func (b *budget) skips(h slog.Handler, r slog.Record) bool {
	now := time.Now()
	b.turn(now, false)
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := &b.lines
	if r.Level >= slog.LevelError {
		lines = &b.errors
	}
	if *lines++; *lines <= LogLines {
		return false
	}
	i := slices.IndexFunc(b.skipped, func(s *skipped) bool { return s.last.Message == r.Message })
	if i < 0 {
		i = len(b.skipped)
		b.skipped = append(b.skipped, &skipped{handler: h, first: r.Time})
	}
	if b.timer == nil {
		b.timer = time.AfterFunc(LogWindow-now.Sub(b.began), func() { b.turn(time.Now(), false) })
	}
	s := b.skipped[i]
	s.last = r.Clone()
	s.n++
	r.Attrs(func(a slog.Attr) bool {
		switch {
		case a.Key == "message_id" && len(s.ids) < logSample:
			s.ids = append(s.ids, a.Value.String())
		case a.Key == "row" && len(s.rows) < logSample:
			s.rows = append(s.rows, a.Value.String())
		}
		return true
	})
	return true
}

// turn begins another window if this one has ended, or at once, and writes the counts.
func (b *budget) turn(now time.Time, atOnce bool) {
	b.mu.Lock()
	if !atOnce && now.Sub(b.began) < LogWindow && !now.Before(b.began) {
		b.mu.Unlock()
		return
	}
	due := b.skipped
	b.began, b.lines, b.errors, b.skipped = now, len(due), 0, nil
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	b.mu.Unlock()
	for _, s := range due {
		r := slog.NewRecord(s.last.Time, s.last.Level, s.last.Message, 0)
		s.last.Attrs(func(a slog.Attr) bool {
			if a.Key != "message_id" && a.Key != "row" && a.Key != "dedup_key" && a.Key != "next" {
				r.AddAttrs(a)
			}
			return true
		})
		r.AddAttrs(slog.Int("more", s.n), slog.Time("since", s.first))
		if len(s.ids) > 0 {
			r.AddAttrs(slog.Any("message_ids", s.ids))
		}
		if len(s.rows) > 0 {
			r.AddAttrs(slog.Any("rows", s.rows))
		}
		_ = s.handler.Handle(context.Background(), r) // as slog.Logger does
	}
}
