package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pgoutbox/outbox/internal/servers"
)

// tools lists the programs that check what is packaged.
func tools() (targets []target) {
	for _, b := range servers.BuiltTools() {
		targets = append(targets, target{b.Name, func(f fetcher, ctx context.Context) error {
			if _, err := servers.FindTool(b.Name); !errors.Is(err, servers.ErrNotFound) {
				return err
			}
			return f.built(ctx, b.Name, b.Version, b.Dir(f.cache), b.Package)
		}})
	}
	for _, name := range servers.PackagedTools() {
		targets = append(targets, target{name, func(f fetcher, ctx context.Context) error {
			return f.packaged(ctx, name, name, name, func() error {
				_, err := servers.FindTool(name)
				return err
			})
		}})
	}
	return targets
}

// built installs a program from a package of a Go module.
func (f fetcher) built(ctx context.Context, name, version, dir, from string) error {
	return f.install(name+" "+version, dir, func(work string) error {
		fmt.Fprintf(f.progress, "%s %s: building\n", name, version)
		// It runs in a folder outside of every module, without anyone's flags and workspace.
		env := append(os.Environ(), "GOBIN="+filepath.Join(work, "out"), "GOWORK=off", "GOFLAGS=", "GOOS=", "GOARCH=")
		return f.run(ctx, work, env, "go", "install", "-trimpath", from+"@v"+version)
	})
}
