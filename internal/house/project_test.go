package house

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A tag of somebody else's action can be moved, a commit can't.
func TestWorkflowsNameTheCommitsOfActions(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../.github/workflows/*.y*ml")
	if err != nil || len(files) == 0 {
		t.Fatalf("workflows %q, %v", files, err)
	}
	uses := regexp.MustCompile(`(?m)^ *(?:- )?uses: +(.*)$`)
	pinned := regexp.MustCompile(`^(\./\S+( #.*)?|[\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)$`)
	for _, file := range files {
		for _, m := range uses.FindAllStringSubmatch(read(t, file), -1) {
			if !pinned.MatchString(m[1]) {
				t.Errorf("%s uses %q: name the full hash of a commit, and its version in a comment", file, m[1])
			}
		}
	}
}

func TestDependabotLooksAtEveryModule(t *testing.T) {
	t.Parallel()
	listed := regexp.MustCompile(`gomod\n +directories: \[(.*)\]`).FindStringSubmatch(read(t, "../../.github/dependabot.yml"))
	if listed == nil {
		t.Fatal("it has no list of folders for gomod")
	}
	got, want := strings.Split(listed[1], ", "), []string(nil)
	for _, m := range modules(t) {
		want = append(want, "/"+m)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("it looks at %q, and there are %q", got, want)
	}
}

func TestModulesAreTaggedAfterThoseThatTheyRequire(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile("(?m)^\\| \\d+ \\| `(.*)` \\| `(.*)v\\d.*` \\|$")
	var tagged []string
	for _, m := range row.FindAllStringSubmatch(read(t, "../../RELEASING.md"), -1) {
		folder := strings.TrimPrefix(m[1], ".")
		if m[2] != strings.TrimPrefix(folder+"/", "/") {
			t.Errorf("the tag of %q begins with %q", m[1], m[2])
		}
		for _, required := range requirements(t, filepath.Join("../..", folder, "go.mod")) {
			ours, found := strings.CutPrefix(required+"/", module+"/")
			if found && !slices.Contains(tagged, strings.TrimSuffix(ours, "/")) {
				t.Errorf("%q is tagged before %s, which it requires", m[1], required)
			}
		}
		tagged = append(tagged, folder)
	}
	for _, m := range modules(t) {
		if m != "proof" && !slices.Contains(tagged, m) {
			t.Errorf("RELEASING.md has no tag for %q", m)
		}
	}
}

// modules returns the folders of go.work, sorted; the library's is "".
func modules(t *testing.T) (folders []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^\t\.(?:/(\S+))?$`).FindAllStringSubmatch(read(t, "../../go.work"), -1) {
		folders = append(folders, m[1])
	}
	if slices.Sort(folders); len(folders) < 2 {
		t.Fatalf("go.work uses %q", folders)
	}
	return folders
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
