package bounds

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// longestTurn is how long a turn lasts if others wait for one.
const longestTurn = 2 * time.Second

// Turns bounds how many sessions with a server begin, and read what has piled up, at once. A turn ends after a while if
// others wait, and who has more to read waits for the next one behind them.
type Turns struct {
	limit int // 0: none

	mu    sync.Mutex
	lines map[string]*line
}

// NewTurns returns a bound, or none if limit is 0.
func NewTurns(limit int) *Turns { return &Turns{limit: limit, lines: make(map[string]*line)} }

// line is a server with those who have a turn and those who wait.
type line struct {
	server  string
	having  []*Turn // in the order in which they got it
	waiting []*Turn
	waits   uint64
	expiry  *time.Timer // the end of the oldest turn, while somebody waits
}

// Turn is one session's.
type Turn struct {
	turns *Turns
	line  *line
	since time.Time
	ready chan struct{} // closed when it has a turn; nil: it neither has nor wants one
}

// Turn returns a session's part, which has no turn yet.
func (t *Turns) Turn(server string) *Turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[server]
	if l == nil {
		l = &line{server: server}
		t.lines[server] = l
	}
	return &Turn{turns: t, line: l}
}

// Begin waits for a turn, unless it has one that still lasts. One goroutine at a time.
func (n *Turn) Begin(ctx context.Context) error {
	t, l := n.turns, n.line
	if t.limit == 0 {
		return nil
	}
	t.mu.Lock()
	if slices.Contains(l.having, n) {
		t.mu.Unlock()
		return nil
	}
	ready := make(chan struct{})
	n.ready = ready
	l.waiting = append(l.waiting, n)
	t.pass(l)
	if slices.Contains(l.waiting, n) {
		l.waits++
	}
	t.mu.Unlock()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		n.End()
		return ctx.Err()
	}
}

// End gives the turn back, if there is one, and waits for none.
func (n *Turn) End() {
	n.turns.mu.Lock()
	defer n.turns.mu.Unlock()
	is := func(other *Turn) bool { return other == n }
	n.line.having = slices.DeleteFunc(n.line.having, is)
	n.line.waiting = slices.DeleteFunc(n.line.waiting, is)
	n.turns.pass(n.line)
}

// pass gives turns to those who wait, and takes those away that have lasted for long enough. t.mu is held.
func (t *Turns) pass(l *line) {
	now := time.Now()
	for len(l.waiting) > 0 {
		if len(l.having) >= t.limit {
			if now.Sub(l.having[0].since) < longestTurn {
				break
			}
			l.having = l.having[1:]
		}
		n := l.waiting[0]
		l.waiting = l.waiting[1:]
		n.since = now
		l.having = append(l.having, n)
		close(n.ready)
	}
	if l.expiry != nil {
		l.expiry.Stop()
		l.expiry = nil
	}
	if len(l.waiting) > 0 {
		l.expiry = time.AfterFunc(max(longestTurn-now.Sub(l.having[0].since), 0), func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.pass(l)
		})
	}
}

// CatchUps is how many have a turn at a server, and how many wait.
type CatchUps struct {
	Server          string
	Having, Waiting int
	Waited          uint64 // so far
}

// Limit is the bound, 0 if there is none.
func (t *Turns) Limit() int { return t.limit }

// Use lists the servers.
func (t *Turns) Use() (list []CatchUps) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.lines {
		list = append(list, CatchUps{l.server, len(l.having), len(l.waiting), l.waits})
	}
	slices.SortFunc(list, func(a, b CatchUps) int { return cmp.Compare(a.Server, b.Server) })
	return list
}
