package health

import "testing"

// One sentence is the verdict on several databases, everywhere.
func TestOneSentenceSaysWhichOfManyDatabasesNeedSomebody(t *testing.T) {
	t.Parallel()
	named := func(states ...State) (all []Named) {
		for i, s := range states {
			all = append(all, Named{string(rune('a' + i)), Verdict{Finding: Finding{State: s}}})
		}
		return all
	}
	for _, c := range []struct {
		states            []State
		sentence, counted string
	}{
		{[]State{StateIdle}, "the only database is well", "1 idle"},
		{[]State{StateIdle, StateFlowing, StateIdle}, "all 3 databases are well", "1 flowing, 2 idle"},
		{[]State{StateIdle, StateLagging}, "1 of 2 databases needs you: b (lagging)", "1 lagging, 1 idle"},
		{[]State{StateDead, StateNoRelay, StateDead, StateIdle, StateUnknown, StateLagging},
			"5 of 6 databases need you: b (no relay), a (dead), c (dead) and 2 more", "1 no relay, 2 dead, 1 lagging, 1 unknown, 1 idle"},
	} {
		s := Over(named(c.states...))
		if got := s.Sentence(); got != c.sentence {
			t.Errorf("%v: %s", c.states, got)
		}
		if got := s.Counted(); got != c.counted {
			t.Errorf("%v: %s", c.states, got)
		}
	}
}
