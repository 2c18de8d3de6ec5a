// Command releasecheck shows that users can use what a release would publish: it makes a module proxy in a folder from
// the committed tree, and then, outside the tree, in empty folders and with an empty module cache, does what the
// documents tell users to do.
//
//	go run ./proof/releasecheck
//
// It runs every line of the README and of docs that begins with "go get" or "go install", and builds every program of
// the README against the fetched modules. Other modules come from the module cache and, if missing there, from the
// proxy that Go is set to.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/pgoutbox/outbox/proof/command"
)

const root = "github.com/pgoutbox/outbox"

// released are the modules that users require, by their folders.
var released = []string{"", "broker", "oteloutbox", "cmd"}

func main() { command.Main("releasecheck", check) }

func check(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("releasecheck", flag.ContinueOnError)
	checkout := flags.String("tree", ".", "the checkout, of which what is committed counts")
	if err := flags.Parse(args); err != nil {
		return err
	}
	tree := *checkout
	version, err := nextVersion(tree)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "outbox-release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	clone := filepath.Join(dir, "clone") // only what is committed
	if text, err := exec.CommandContext(ctx, "git", "clone", "--quiet", tree, clone).CombinedOutput(); err != nil {
		return fmt.Errorf("clone the tree: %w\n%s", err, text)
	}
	for _, folder := range released {
		if err := publish(filepath.Join(dir, "proxy"), clone, folder, version); err != nil {
			return fmt.Errorf("publish %s: %w", modulePath(folder), err)
		}
	}
	u, err := newUser(ctx, dir, out)
	if err != nil {
		return err
	}
	pages, err := filepath.Glob(filepath.Join(tree, "docs", "*.md"))
	if err != nil {
		return err
	}
	told := 0
	for _, page := range append([]string{filepath.Join(tree, "README.md")}, pages...) {
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		n, err := u.follow(ctx, string(text), filepath.Base(page) == "README.md")
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(page), err)
		}
		told += n
	}
	if told == 0 {
		return errors.New("the documents have no command to get anything")
	}
	fmt.Fprintf(out, "%d instructions followed with %s\n", told, version)
	return nil
}

func modulePath(folder string) string { return strings.TrimSuffix(root+"/"+folder, "/") }

// nextVersion is the version that the modules require of each other. All of them must name the same one.
func nextVersion(tree string) (string, error) {
	var versions []string
	for _, folder := range released {
		name := filepath.Join(tree, folder, "go.mod")
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		mod, err := modfile.Parse(name, text, nil)
		if err != nil {
			return "", err
		}
		if len(mod.Replace) > 0 {
			return "", fmt.Errorf("%s replaces a module, so it can't be installed from", name)
		}
		for _, r := range mod.Require {
			if (r.Mod.Path == root || strings.HasPrefix(r.Mod.Path, root+"/")) && !slices.Contains(versions, r.Mod.Version) {
				versions = append(versions, r.Mod.Version)
			}
		}
	}
	if len(versions) != 1 {
		return "", fmt.Errorf("the modules require these versions of each other, and it should be one: %q", versions)
	}
	return versions[0], nil
}

// publish writes a module into a proxy, as git tag and the proxy of the world would.
func publish(proxy, clone, folder, version string) error {
	m := module.Version{Path: modulePath(folder), Version: version}
	at := filepath.Join(proxy, filepath.FromSlash(m.Path), "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	archive, err := os.Create(filepath.Join(at, version+".zip"))
	if err != nil {
		return err
	}
	if err := errors.Join(zip.CreateFromVCS(archive, m, clone, "HEAD", folder), archive.Close()); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(clone, folder, "go.mod"))
	return errors.Join(err,
		os.WriteFile(filepath.Join(at, version+".mod"), mod, 0o644),
		os.WriteFile(filepath.Join(at, version+".info"), []byte(fmt.Sprintf(`{"Version":%q}`, version)), 0o644),
		os.WriteFile(filepath.Join(at, "list"), []byte(version+"\n"), 0o644))
}

// user is somebody with Go, an empty module cache and no checkout.
type user struct {
	dir string // an empty folder for each attempt is made here
	env []string
	out io.Writer
	n   int
}

func newUser(ctx context.Context, dir string, out io.Writer) (*user, error) {
	settings, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return nil, err
	}
	cache, proxy, _ := strings.Cut(strings.TrimSpace(string(settings)), "\n")
	u := &user{dir: dir, out: out}
	for _, e := range os.Environ() {
		// What make and go run have set would lead back into the checkout.
		if name, _, _ := strings.Cut(e, "="); !slices.Contains([]string{"GOFLAGS", "GOWORK", "GOMOD", "GOBIN", "PWD"}, name) {
			u.env = append(u.env, e)
		}
	}
	u.env = append(u.env,
		"GOPROXY=file://"+filepath.Join(dir, "proxy")+",file://"+filepath.Join(cache, "cache", "download")+","+proxy,
		"GONOSUMDB="+root+","+root+"/*", "GOMODCACHE="+filepath.Join(dir, "cache"), "GOFLAGS=-modcacherw", "GOBIN="+
			filepath.Join(dir, "bin"))
	return u, nil
}

var (
	instruction = regexp.MustCompile("(?m)^(?:    |\\$ )?(go (?:get|install) \\S*" + regexp.QuoteMeta(root) + "\\S*)(?: +#.*)?$")
	program     = regexp.MustCompile("(?s)```go\n(.*?)\n```")
)

// follow does what a page tells, and builds its programs if they are whole ones. It returns how many instructions there
// were.
func (u *user) follow(ctx context.Context, page string, build bool) (int, error) {
	n := 0
	for _, line := range instruction.FindAllStringSubmatch(page, -1) {
		n++
		if err := u.module(ctx, func(run func(...string) error) error { return run(strings.Fields(line[1])...) }); err != nil {
			return n, err
		}
	}
	for _, code := range program.FindAllStringSubmatch(page, -1) {
		if !build || !strings.Contains(code[1], "package main") {
			continue
		}
		n++
		if err := u.module(ctx, func(run func(...string) error) error {
			if err := os.WriteFile(filepath.Join(u.folder(), "main.go"), []byte(code[1]), 0o644); err != nil {
				return err
			}
			return errors.Join(run("go", "mod", "tidy"), run("go", "vet", "."))
		}); err != nil {
			return n, err
		}
	}
	return n, nil
}

func (u *user) folder() string { return filepath.Join(u.dir, fmt.Sprintf("service%d", u.n)) }

// module has do work in the folder of a new module.
func (u *user) module(ctx context.Context, do func(run func(...string) error) error) error {
	u.n++
	if err := os.Mkdir(u.folder(), 0o755); err != nil {
		return err
	}
	run := func(args ...string) error {
		fmt.Fprintln(u.out, strings.Join(args, " "))
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir, cmd.Env = u.folder(), append(slices.Clone(u.env), "PWD="+u.folder())
		text, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, text)
		}
		return nil
	}
	if err := run("go", "mod", "init", "example.com/service"); err != nil {
		return err
	}
	return do(run)
}
