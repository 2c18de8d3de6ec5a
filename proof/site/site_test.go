package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
)

func TestMain(m *testing.M) { servers.Main(m) }

func TestTheSiteIsBuiltWithoutAWarning(t *testing.T) {
	t.Parallel()
	servers.Tool(t, servers.MkDocs.Package)
	site := filepath.Join(t.TempDir(), "site")
	if err := build(t.Context(), filepath.Join("..", ".."), site, t.Output()); err != nil {
		t.Fatal(err)
	}
	all := 0
	err := filepath.WalkDir(site, func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".html") {
			return err
		}
		all++
		text, err := os.ReadFile(file)
		if strings.Contains(string(text), "```") {
			t.Errorf("%s shows the fence of a block", file)
		}
		for _, kind := range []string{"<script src=\"http", "<link rel=\"stylesheet\" href=\"http"} {
			if strings.Contains(string(text), kind) {
				t.Errorf("%s fetches from elsewhere: %s…", file, kind)
			}
		}
		return err
	})
	if err != nil || all < 40 {
		t.Errorf("%d pages, %v", all, err)
	}
	for _, file := range []string{"search/search_index.json", "docs/quickstart/kafka/index.html", "docs/pictures/console-light.png"} {
		if _, err := os.Stat(filepath.Join(site, file)); err != nil {
			t.Error(err)
		}
	}
}
