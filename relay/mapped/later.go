package mapped

import (
	"slices"
	"sync"
)

// later is what could not be stored because another transaction, such as a writer's, has locked the rows, or because
// the server refuses them. The next settlement or a later poll stores it. After a crash such rows come again. Safe for
// concurrent use; store runs once at a time.
type later struct {
	mu   sync.Mutex
	left outcomes
}

// with returns o and what is left, without the rows for which o has a newer outcome.
func (l *later) with(o *outcomes) *outcomes {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left.empty() {
		return o
	}
	before := l.left.among(idsOf(o.all()), false)
	all := before.and(*o)
	return &all
}

// set replaces what is left of the rows of o.
func (l *later) set(o *outcomes, left outcomes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.left.empty() {
		others := l.left.among(idsOf(o.all()), false)
		left = others.and(left)
	}
	l.left = left
}

func (l *later) all() []mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.left.all()
}

// renew notes new tokens of claims, by the ids of their rows.
func (l *later) renew(tokens map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left.each(func(m *mark) {
		if token, ok := tokens[m.id]; ok {
			m.token = token
		}
	})
}

// undone reports whether marks are left that something undoes.
func (l *later) undone() bool {
	return slices.ContainsFunc(l.all(), func(m mark) bool { return m.undone })
}

// known adds the ids to those that a poll leaves out.
func (l *later) known(ids []string) []string { return append(ids, idsOf(l.all())...) }
