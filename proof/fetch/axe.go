package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pgoutbox/outbox/internal/servers"
)

// axe installs axe-core from npm, for the test of the console in a browser.
func (f fetcher) axe(ctx context.Context) error {
	dir := servers.AxeDir(f.cache)
	if _, err := os.Stat(filepath.Join(dir, "axe.min.js")); err == nil {
		fmt.Fprintf(f.progress, "axe-core %s: in %s\n", servers.AxeVersion, dir)
		return nil
	}
	if _, err := exec.LookPath("npm"); err != nil {
		return fmt.Errorf("fetch axe-core: it takes npm; on Debian and Ubuntu: sudo apt-get install npm")
	}
	return f.install("axe-core "+servers.AxeVersion, dir, func(work string) error {
		if err := f.run(ctx, work, nil, "npm", "pack", "--silent", "--ignore-scripts", "axe-core@"+servers.AxeVersion); err != nil {
			return err
		}
		out := filepath.Join(work, "out")
		if err := os.Mkdir(out, 0o755); err != nil {
			return err
		}
		return f.run(ctx, out, nil, "tar", "xzf", filepath.Join(work, "axe-core-"+servers.AxeVersion+".tgz"),
			"--strip-components=1", "package/axe.min.js", "package/LICENSE")
	})
}
