package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Build builds the binary as "make build" does, into a folder, and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "outbox")
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", "grpcnotrace", "-trimpath", "-ldflags=-s -w", "-o", path,
		"github.com/pgoutbox/outbox/cmd/outbox")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute // it waits for its compilers, and a killed one leaves its folder
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the binary: %w\n%s", err, out)
	}
	return path, nil
}
