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
	root, mutants := all(t)
	diffs := make(map[string]string)
	for _, m := range mutants {
		if _, err := m.apply(t.Context(), root, t.TempDir()); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if other := diffs[m.diff]; other != "" {
			t.Errorf("%s is also %s", m.name, other)
		}
		diffs[m.diff] = m.name
	}
}

// Of several places that a hunk fits, git changes the one nearest to its line number, which edits elsewhere move.
func TestEveryMutantFitsOnePlaceAlone(t *testing.T) {
	t.Parallel()
	root, mutants := all(t)
	for _, m := range mutants {
		for file := range strings.SplitSeq("\n"+m.diff, "\n--- a/") {
			header, hunks, _ := strings.Cut(file, "\n@@ ")
			name, _, _ := strings.Cut(header, "\n")
			if name == "" {
				continue // before the first file
			}
			source, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			for hunk := range strings.SplitSeq(hunks, "\n@@ ") {
				_, lines, _ := strings.Cut(strings.TrimSuffix(hunk, "\n"), "\n")
				before := "\n"
				for line := range strings.SplitSeq(lines, "\n") {
					if !strings.HasPrefix(line, "+") {
						before += line[min(1, len(line)):] + "\n"
					}
				}
				code := "\n" + string(source)
				if at := strings.Index(code, before); at < 0 || at != strings.LastIndex(code, before) {
					t.Errorf("%s: a hunk fits no place in %s, or several: give it other lines around the change", m.name, name)
				}
			}
		}
	}
}

func all(t *testing.T) (root string, mutants []mutant) {
	t.Helper()
	root, err := repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if mutants, err = read(root); err != nil {
		t.Fatal(err)
	}
	if len(mutants) == 0 {
		t.Fatal("there is no mutant")
	}
	return root, mutants
}

// A mutant that no test of its name could catch would only be found to survive.
func TestEveryMutantHasItsTests(t *testing.T) {
	t.Parallel()
	root, mutants := all(t)
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
		for name := range strings.SplitSeq(m.test, "|") {
			name, _, _ = strings.Cut(strings.TrimSuffix(strings.TrimPrefix(name, "^"), "$"), "/")
			if !regexp.MustCompile(`(?m)^func Test\w*` + strings.TrimPrefix(name, "Test")).MatchString(all.String()) {
				t.Errorf("%s: %s has no test %s", m.name, m.pkg, name)
			}
		}
	}
}
