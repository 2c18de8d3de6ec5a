package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

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

// A mutant that no test of its name could catch would only be found to survive.
func TestEveryMutantHasItsTests(t *testing.T) {
	t.Parallel()
	root, err := repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		files, err := filepath.Glob(filepath.Join(root, m.pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
		for name := range strings.SplitSeq(m.run, "|") {
			name, _, _ = strings.Cut(strings.TrimSuffix(strings.TrimPrefix(name, "^"), "$"), "/")
			if !regexp.MustCompile(`(?m)^func Test\w*` + strings.TrimPrefix(name, "Test")).MatchString(all.String()) {
				t.Errorf("%s: %s has no test %s", m.name, m.pkg, name)
			}
		}
	}
}
