package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/internal/printed"
)

// Several is the verdict on several databases: how many there are in each state, and which need a person.
type Several struct {
	Databases int           `json:"databases"`
	Counts    map[State]int `json:"states"`
	// Need are those whose state is neither idle nor flowing, the worst first, and of equal ones by their names.
	Need []Named `json:"need"`
}

// Named is the verdict on one of several databases.
type Named struct {
	Name string `json:"name"`
	Verdict
}

// Over is the verdict on several databases.
func Over(all []Named) Several {
	s := Several{Databases: len(all), Counts: map[State]int{}, Need: []Named{}}
	for _, n := range all {
		s.Counts[n.State]++
		if !n.State.OK() {
			s.Need = append(s.Need, n)
		}
	}
	slices.SortStableFunc(s.Need, func(a, b Named) int {
		return cmp.Or(Compare(b.State, a.State), strings.Compare(a.Name, b.Name))
	})
	return s
}

// few is how many databases a sentence names.
const few = 3

// Sentence says how many databases need a person, and names the worst.
func (s Several) Sentence() string {
	switch {
	case s.Databases == 0:
		return "there is no database here"
	case len(s.Need) == 0 && s.Databases == 1:
		return "the only database is well"
	case len(s.Need) == 0:
		return "all " + printed.Many(s.Databases, "database is", "databases are") + " well"
	}
	var names []string
	for _, n := range s.Need[:min(len(s.Need), few)] {
		names = append(names, fmt.Sprintf("%s (%s)", n.Name, n.State.Word()))
	}
	text := fmt.Sprintf("%s of %s: %s", printed.Number(len(s.Need)), printed.Many(s.Databases, "database", "databases")+" "+
		map[bool]string{true: "needs you", false: "need you"}[len(s.Need) == 1], strings.Join(names, ", "))
	if more := len(s.Need) - few; more > 0 {
		text += " and " + printed.Number(more) + " more"
	}
	return text
}

// Counted lists how many databases there are in each state, the worst first.
func (s Several) Counted() string {
	var parts []string
	for _, state := range slices.Backward(States()) {
		if n := s.Counts[state]; n > 0 {
			parts = append(parts, printed.Number(n)+" "+state.Word())
		}
	}
	return strings.Join(parts, ", ")
}

// Verdict is that of the worst database.
func (s Several) Verdict() Verdict {
	if len(s.Need) == 0 {
		state := StateIdle
		if s.Counts[StateFlowing] > 0 {
			state = StateFlowing
		}
		return Verdict{Finding: Finding{State: state}}
	}
	return s.Need[0].Verdict
}
