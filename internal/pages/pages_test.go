package pages

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestEveryLinkOfTheDocumentationLeadsSomewhere(t *testing.T) {
	t.Parallel()
	all, err := Read("../..")
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for _, p := range all {
		links += len(p.Links)
	}
	if links < 100 {
		t.Errorf("only %d links were found", links)
	}
	for _, fault := range Faults("../..", all) {
		t.Error(fault)
	}
}

func TestAPageIsRead(t *testing.T) {
	t.Parallel()
	p := parse("a.md", strings.ReplaceAll(`# Some 'title' & [more](b.md#x)
Text with 'outbox
status', a [link](c.md) and '[none](d.md)'.

    indented

    still
- item

      the item's

'''sh title="run" unchecked="it takes a cloud"
echo
    # [no](link.md)
'''
`, "'", "`"))
	if want := []Block{
		{Position: "a.md:5", Text: "indented\n\nstill\n"},
		{Position: "a.md:12", Lang: "sh", Options: map[string]string{"title": "run", "unchecked": "it takes a cloud"},
			Text: "echo\n    # [no](link.md)\n"},
	}; !reflect.DeepEqual(p.Blocks, want) {
		t.Errorf("blocks %+v", p.Blocks)
	}
	if want := []Link{{"a.md:1", "b.md#x"}, {"a.md:3", "c.md"}}; !reflect.DeepEqual(p.Links, want) {
		t.Errorf("links %+v", p.Links)
	}
	if want := []Span{{"a.md:1", "title"}, {"a.md:2", "outbox status"}, {"a.md:3", "[none](d.md)"}}; !reflect.DeepEqual(p.Spans, want) {
		t.Errorf("spans %+v", p.Spans)
	}
	if !p.Anchors["some-title--more"] || len(p.Anchors) != 1 {
		t.Errorf("anchors %v", p.Anchors)
	}
}

func TestALinkThatLeadsNowhereIsFound(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	text := "# Here\n[a](#here) [b](#there) [c](a.md#here) [d](b.md) [e](https://example.com/none)\n"
	if err := os.WriteFile(filepath.Join(root, "a.md"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a.md:2: a.md has no heading #there", "a.md:2: there is no b.md"}
	if faults := Faults(root, all); !reflect.DeepEqual(faults, want) {
		t.Errorf("%q", faults)
	}
}
