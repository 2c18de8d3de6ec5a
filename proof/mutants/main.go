// Command mutants shows that the checks catch errors: it breaks one mechanism after the other, by an overlay that
// doesn't change the tree, and runs the tests that should notice.
//
//	go run ./proof/mutants [name ...]
//
// A mutant is a file NAME.diff in this folder. It begins with the package and the tests that must fail, and the reason.
// The program ends with exit code 1 if a mutant survives, or if its diff no longer fits the code.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// folder has the mutants, below the root.
const folder = "proof/mutants"

// mutant is one mistake in the engine, a reader or an adapter.
type mutant struct {
	name string
	// pkg and test are the tests that must catch it within their normal budget.
	pkg, test, reason string
	diff              string // for git apply, at the root
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "Usage: mutants [name ...]\n\nBreaks one mechanism after the other: %s/*.diff has them.\n", folder)
	}
	flag.Parse()
	if err := run(ctx, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) error {
	root, err := repository(ctx)
	if err != nil {
		return err
	}
	mutants, err := read(root)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(mutants, func(m mutant) bool { return m.name == name }) {
			return fmt.Errorf("no mutant is named %q; ls %s/*.diff lists them", name, folder)
		}
	}
	dir, err := os.MkdirTemp("", "outbox-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var survived []string
	tried := 0
	for _, m := range mutants {
		if len(names) > 0 && !slices.Contains(names, m.name) {
			continue
		}
		tried++
		began := time.Now()
		caught, by, err := try(ctx, root, dir, m)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			survived, by = append(survived, m.name), "NOT TRIED: "+err.Error()
		} else if !caught {
			survived = append(survived, m.name)
			by = "SURVIVED"
		}
		fmt.Printf("%-76s %6.1fs  %s\n", m.name, time.Since(began).Seconds(), by)
	}
	fmt.Printf("%d of %d mutants caught\n", tried-len(survived), tried)
	if len(survived) > 0 {
		return fmt.Errorf("survived: %s", strings.Join(survived, ", "))
	}
	return nil
}

// read returns every mutant, ordered by name.
func read(root string) (all []mutant, err error) {
	files, err := filepath.Glob(filepath.Join(root, folder, "*.diff"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		found := parts.FindSubmatch(text)
		if found == nil {
			return nil, fmt.Errorf("%s does not begin with package, test and reason, before an empty line and a diff", file)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".diff")
		all = append(all, mutant{name, string(found[1]), string(found[2]), string(found[3]), string(found[4])})
	}
	return all, nil
}

var (
	parts   = regexp.MustCompile(`(?s)^package: (\S+)\ntest: (\S+)\nreason: ([^\n]+)\n\n(--- a/.+)$`)
	changed = regexp.MustCompile(`(?m)^--- a/(\S+)$`)
)

// apply copies the files that the mutant changes from the root into dir, applies the diff there, and returns their
// names.
func (m mutant) apply(ctx context.Context, root, dir string) (files []string, err error) {
	for _, found := range changed.FindAllStringSubmatch(m.diff, -1) {
		source, err := os.ReadFile(filepath.Join(root, found[1]))
		if err != nil {
			return nil, err
		}
		target := filepath.Join(dir, found[1])
		if err := errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, source, 0o600)); err != nil {
			return nil, err
		}
		files = append(files, found[1])
	}
	cmd := exec.CommandContext(ctx, "git", "apply", "-")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(m.diff)
	// If dir were in a repository, git would skip files that the repository doesn't have.
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("git apply: %w: %s", err, out)
	}
	return files, nil
}

// try runs the tests over the mutant and returns which one failed first.
func try(ctx context.Context, root, dir string, m mutant) (caught bool, by string, err error) {
	files, err := m.apply(ctx, root, dir)
	if err != nil {
		return false, "", err
	}
	replaced := make(map[string]string)
	for _, file := range files {
		replaced[filepath.Join(root, file)] = filepath.Join(dir, file)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return false, "", err
	}
	overlayPath := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlayPath, overlay, 0o600); err != nil {
		return false, "", err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-failfast", "-timeout", "2m", "-run", m.test, m.pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlayPath) // also for the programs that tests build
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false, "", nil
	}
	if ctx.Err() != nil {
		return false, "", ctx.Err()
	}
	if bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")) {
		return false, "", fmt.Errorf("the mutant does not compile:\n%s", out)
	}
	if found := failure.FindSubmatch(out); found != nil {
		return true, string(found[1]), nil
	}
	if hung := stuck.FindSubmatch(out); hung != nil {
		return true, string(hung[1]) + ", which never ended", nil
	}
	if bytes.Contains(out, []byte("panic: ")) {
		return true, "a panic", nil
	}
	return false, "", fmt.Errorf("the tests failed without saying which:\n%s", out)
}

var (
	failure = regexp.MustCompile(`--- FAIL: (\S+)`)
	stuck   = regexp.MustCompile(`running tests:\s+(\S+)`)
)

func repository(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/pgoutbox/outbox").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
