// Command mutants shows that the checks catch errors: it breaks one mechanism after the other, by an overlay that
// doesn't change the tree, and runs the tests that should notice.
//
//	go run ./proof/mutants [name ...]
//
// It ends with exit code 1 if a mutant survives, or if its text no longer fits the code.
package main

import (
	"bytes"
	"context"
	"encoding/json"
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

// mutant is one mistake in the engine, a reader or an adapter.
type mutant struct {
	name string
	// file, below the root, in which old becomes wrong. old occurs exactly once.
	file, old, wrong string
	// pkg and run are the tests that must catch it within their normal budget.
	pkg, run string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "Usage: mutants [name ...]\n\nBreaks one mechanism after the other. Without a name, each of:\n\n")
		for _, m := range mutants {
			fmt.Fprintln(os.Stderr, "  "+m.name)
		}
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
	for _, name := range names {
		if !slices.ContainsFunc(mutants, func(m mutant) bool { return m.name == name }) {
			return fmt.Errorf("no mutant is named %q; -h lists them", name)
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
		fmt.Printf("%-46s %6.1fs  %s\n", m.name, time.Since(began).Seconds(), by)
	}
	fmt.Printf("%d of %d mutants caught\n", tried-len(survived), tried)
	if len(survived) > 0 {
		return fmt.Errorf("survived: %s", strings.Join(survived, ", "))
	}
	return nil
}

// apply returns the file with the mistake in it.
func (m mutant) apply(root string) (string, error) {
	source, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return "", fmt.Errorf("the text to break stands %d times in %s: the mutant has to follow the code", n, m.file)
	}
	return strings.Replace(string(source), m.old, m.wrong, 1), nil
}

// try runs the tests over the mutant and returns which one failed first.
func try(ctx context.Context, root, dir string, m mutant) (caught bool, by string, err error) {
	path := filepath.Join(root, m.file)
	text, err := m.apply(root)
	if err != nil {
		return false, "", err
	}
	broken := filepath.Join(dir, "mutant.go")
	if err := os.WriteFile(broken, []byte(text), 0o600); err != nil {
		return false, "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: broken}})
	if err != nil {
		return false, "", err
	}
	overlayPath := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlayPath, overlay, 0o600); err != nil {
		return false, "", err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-failfast", "-timeout", "2m", "-run", m.run, m.pkg)
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
