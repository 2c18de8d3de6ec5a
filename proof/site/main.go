// Command site builds the documentation as a static site: with a search, light and dark, and nothing from elsewhere.
//
//	go run ./proof/site -into bin/site
//
// The pages stay where they are in the repository, and read well there. Only links to files that are no pages lead to
// the repository on the forge.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/pgoutbox/outbox/internal/pages"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/command"
)

//go:embed mkdocs.yml
var settings []byte

const forge = "https://github.com/pgoutbox/outbox/blob/main/"

func main() { command.Main("site", run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("site", flag.ContinueOnError)
	tree := flags.String("tree", ".", "the checkout")
	into := flags.String("into", "bin/site", "folder of the site, which is emptied before")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return build(ctx, *tree, *into, out)
}

// build fails if a page is not in the navigation, or if a link leads nowhere.
func build(ctx context.Context, tree, into string, out io.Writer) (err error) {
	mkdocs, err := servers.FindTool(servers.MkDocs.Package)
	if err != nil {
		return err
	}
	if into, err = filepath.Abs(into); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "outbox-site-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := os.WriteFile(filepath.Join(work, "mkdocs.yml"), settings, 0o600); err != nil {
		return err
	}
	if err := gather(tree, filepath.Join(work, "pages")); err != nil {
		return fmt.Errorf("gather the pages: %w", err)
	}
	cmd := servers.MkDocs.Command(ctx, mkdocs, "build", "--strict", "--quiet", "--site-dir", into)
	cmd.Dir, cmd.Env = work, append(cmd.Env, "NO_MKDOCS_2_WARNING=1")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("mkdocs: %w", err)
	}
	return nil
}

// gather copies docs and the pages beside it.
func gather(tree, into string) error {
	all, err := pages.Read(tree)
	if err != nil {
		return err
	}
	for _, p := range all {
		if in(p.Path) {
			text, err := os.ReadFile(filepath.Join(tree, p.Path))
			if err == nil {
				err = put(filepath.Join(into, p.Path), []byte(leading(p, string(text))))
			}
			if err != nil {
				return err
			}
		}
	}
	return filepath.WalkDir(filepath.Join(tree, "docs"), func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(file, ".md") {
			return err
		}
		from, err := filepath.Rel(tree, file)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return put(filepath.Join(into, from), text)
	})
}

func put(file string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// in reports whether the site has the file.
func in(file string) bool {
	return strings.HasPrefix(file, "docs/") || file == "README.md" || file == "CONTRIBUTING.md" || file == "CHANGELOG.md"
}

// unchecked is an option of blocks for the tests alone, which MkDocs takes for none.
var unchecked = regexp.MustCompile("(?m)^( *```.*) unchecked=\"[^\"]*\"")

// leading is the page's text whose links to what the site doesn't have lead to the forge.
func leading(p pages.Page, text string) string {
	text = unchecked.ReplaceAllString(text, "$1")
	for _, l := range p.Links {
		target, fragment, _ := strings.Cut(l.Target, "#")
		if target == "" || strings.Contains(target, ":") {
			continue
		}
		if file := path.Join(path.Dir(p.Path), target); !in(file) {
			to := forge + file
			if fragment != "" {
				to += "#" + fragment
			}
			text = strings.ReplaceAll(text, "]("+l.Target+")", "]("+to+")")
		}
	}
	return text
}
