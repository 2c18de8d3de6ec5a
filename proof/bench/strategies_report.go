package main

import (
	"fmt"
	"slices"
)

// strategyBroken holds a contender to what it promises: an original, or another's, to nothing.
func (r *Result) strategyBroken() string {
	i := slices.IndexFunc(strategies(), func(s strategy) bool { return s.name == r.Contender })
	if i < 0 {
		return ""
	}
	s := strategies()[i]
	if s.order == nil {
		return ""
	}
	floor := s.name == Floor
	if r.Corrupted+r.Phantom+r.Lost > 0 || r.Duplicated > 0 && !floor || r.Inverted > 0 && s.order(r.Relays) {
		return fmt.Sprintf("%d lost, %d phantom, %d corrupted, %d duplicated, %d inverted", r.Lost, r.Phantom, r.Corrupted, r.Duplicated, r.Inverted)
	}
	return ""
}
