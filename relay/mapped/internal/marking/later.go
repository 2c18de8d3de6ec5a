package marking

import (
	"slices"
	"sync"
)

// Later is what could not be stored because another transaction, such as a writer's, has locked the rows, or because
// the server refuses them. The next settlement or a later poll stores it. After a crash such rows come again. Safe for
// concurrent use; store runs once at a time.
type Later struct {
	mu   sync.Mutex
	left Outcomes
}

// merge returns o and what is left, without the rows for which o has a newer outcome.
func (l *Later) merge(o *Outcomes) *Outcomes {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left.Empty() {
		return o
	}
	before := l.left.filter(idsOf(o.all()), false)
	all := before.plus(*o)
	return &all
}

// Set replaces what is left of the rows of o.
func (l *Later) Set(o *Outcomes, left Outcomes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.left.Empty() {
		others := l.left.filter(idsOf(o.all()), false)
		left = others.plus(left)
	}
	l.left = left
}

// All returns what is left.
func (l *Later) All() []Mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.left.all()
}

// Renew notes new tokens of claims, by the ids of their rows.
func (l *Later) Renew(tokens map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left.each(func(m *Mark) {
		if token, ok := tokens[m.ID]; ok {
			m.Token = token
		}
	})
}

// Undone reports whether marks are left that something undoes.
func (l *Later) Undone() bool {
	return slices.ContainsFunc(l.All(), func(m Mark) bool { return m.undone })
}

// AppendIDs adds the ids of what is left to those that a poll leaves out.
func (l *Later) AppendIDs(ids []string) []string { return append(ids, idsOf(l.All())...) }
