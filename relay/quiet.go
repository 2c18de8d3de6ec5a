package relay

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// quiet is a handler that bounds the lines of one destination: a fault that a million messages have is told by a few of them
// and a count. Lines of level debug pass.
type quiet struct {
	slog.Handler
	budget *budget
}

const (
	quietWindow = time.Minute
	quietLines  = 12 // in a window, before lines are only counted
	quietSample = 3
)

// budget is shared by a handler and those made from it.
type budget struct {
	mu      sync.Mutex
	began   time.Time
	lines   int
	skipped []*skipped // in the order in which they began
}

// skipped counts the lines with one text that were not written.
type skipped struct {
	handler slog.Handler
	last    slog.Record
	n       int
	ids     []string // of the first messages
}

// quieted returns a logger whose lines are bounded, and how to write the counts that are due.
func quieted(logger *slog.Logger) (*slog.Logger, *budget) {
	b := &budget{}
	return slog.New(&quiet{logger.Handler(), b}), b
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
	b.flush(r.Time)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lines++; b.lines <= quietLines {
		return false
	}
	i := slices.IndexFunc(b.skipped, func(s *skipped) bool { return s.last.Message == r.Message })
	if i < 0 {
		i = len(b.skipped)
		b.skipped = append(b.skipped, &skipped{handler: h})
	}
	s := b.skipped[i]
	s.last = r.Clone()
	s.n++
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "message_id" && len(s.ids) < quietSample {
			s.ids = append(s.ids, a.Value.String())
		}
		return true
	})
	return true
}

// flush writes the counts of a window that has ended.
func (b *budget) flush(now time.Time) {
	b.mu.Lock()
	if now.Sub(b.began) < quietWindow && !now.Before(b.began) {
		b.mu.Unlock()
		return
	}
	due := b.skipped
	b.began, b.lines, b.skipped = now, len(due), nil
	b.mu.Unlock()
	for _, s := range due {
		r := slog.NewRecord(now, s.last.Level, s.last.Message, 0)
		s.last.Attrs(func(a slog.Attr) bool {
			if a.Key != "message_id" {
				r.AddAttrs(a)
			}
			return true
		})
		r.AddAttrs(slog.Int("more", s.n), slog.Duration("within", quietWindow))
		if len(s.ids) > 0 {
			r.AddAttrs(slog.Any("message_ids", s.ids))
		}
		_ = s.handler.Handle(context.Background(), r) // as slog.Logger does
	}
}

// end writes what is still counted.
func (b *budget) end() {
	b.mu.Lock()
	b.began = time.Time{}
	b.mu.Unlock()
	b.flush(time.Now())
}
