package brokertest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of answers in docs/brokers")

// Answers are a server's answers, by their names, with what an adapter makes of them. A name is written as in a page:
// with backquotes if it is a code.
type Answers map[string]error

// kinds are all kinds of outcomes, in the order of the tables.
var kinds = []string{"accepted", "refused", "topic unavailable", "unavailable", "retried", "skipped"}

// Page requires that the page of a broker has these answers, between two marks with the name of the table: every answer
// beside its kind, as the code decides. With -update it writes them. dir is the way to the folder docs/brokers.
func (a Answers) Page(t *testing.T, dir, page, name string) {
	t.Helper()
	byKind := map[string][]string{}
	for answer, err := range a {
		byKind[Kind(err)] = append(byKind[Kind(err)], answer)
	}
	table := "| kind | answers |\n|---|---|\n"
	for _, kind := range kinds {
		if answers := byKind[kind]; len(answers) > 0 {
			slices.Sort(answers)
			table += fmt.Sprintf("| %s | %s |\n", kind, strings.Join(answers, ", "))
		}
	}
	file := filepath.Join(dir, page)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
	before, rest, found := strings.Cut(string(text), begin)
	now, after, ends := strings.Cut(rest, end)
	switch {
	case !found || !ends:
		t.Fatalf("%s lacks the marks of the table %q", file, name)
	case now == table:
	case !*update:
		t.Errorf("%s differs from what the code does; go test with -update writes it\n got:\n%s\nwant:\n%s", file, now, table)
	default:
		if err := os.WriteFile(file, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
