package rig

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Build builds the binary into a folder and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "outbox")
	out, err := exec.CommandContext(ctx, "go", "build", "-o", path, "github.com/pgoutbox/outbox/cmd/outbox").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the binary: %w\n%s", err, out)
	}
	return path, nil
}
