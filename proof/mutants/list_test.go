package main

import "testing"

// make mutants takes long; that a mutant no longer fits the code is found out here.
func TestEveryMutantFitsTheCode(t *testing.T) {
	t.Parallel()
	root, err := repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, m := range mutants {
		text, err := m.apply(root)
		switch {
		case err != nil:
			t.Errorf("%s: %v", m.name, err)
		case text == "" || m.old == m.wrong:
			t.Errorf("%s breaks nothing", m.name)
		case names[m.name]:
			t.Errorf("two mutants are called %s", m.name)
		}
		names[m.name] = true
	}
}
