package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pgoutbox/outbox/internal/child"
)

// Build builds the binary as "make build" does, into a folder, and returns its path. If ctx ends, nothing of the build
// runs any more, and nothing of it is left.
func Build(ctx context.Context, dir string) (string, error) {
	compiler, err := exec.LookPath("go")
	if err != nil {
		return "", fmt.Errorf("build the binary: %w", err)
	}
	// A command that is interrupted removes its folder while its compilers still write to it.
	work, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", fmt.Errorf("build the binary: %w", err)
	}
	defer os.RemoveAll(work)
	path := filepath.Join(dir, "outbox")
	build, err := child.Start(child.Command{
		Path: compiler,
		Args: []string{"build", "-tags", "grpcnotrace", "-trimpath", "-ldflags=-s -w", "-o", path,
			"github.com/pgoutbox/outbox/cmd/outbox"},
		Env:     append(os.Environ(), "CGO_ENABLED=0", "GOTMPDIR="+work),
		LogFile: filepath.Join(work, "log"),
	})
	if err != nil {
		return "", fmt.Errorf("build the binary: %w", err)
	}
	select {
	case <-build.Exited():
		err = build.Err()
	case <-ctx.Done():
		if err = build.Kill(); err == nil {
			err = ctx.Err()
		}
	}
	if err != nil {
		return "", fmt.Errorf("build the binary: %w\n%s", err, build.Log())
	}
	return path, nil
}
