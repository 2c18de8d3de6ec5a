package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pgoutbox/outbox/internal/servers"
)

// readers installs official libraries for Node and Python, by which tests read what is sent.
func (f fetcher) readers(ctx context.Context) error {
	if _, err := servers.FindReaders(); err == nil {
		return nil
	}
	npm, noNode := exec.LookPath("npm")
	python, noPython := exec.LookPath("python3")
	if noNode != nil || noPython != nil {
		return fmt.Errorf("fetch readers: it takes Node (npm) and python3 with pip; on Debian and Ubuntu: sudo apt-get install npm python3-pip")
	}
	return f.install("readers", servers.ReadersDir(f.cache), func(work string) error {
		fmt.Fprintln(f.progress, "readers: downloading 30 MB")
		out := filepath.Join(work, "out")
		if err := os.Mkdir(out, 0o755); err != nil {
			return err
		}
		err := f.run(ctx, out, nil, npm, "install", "--no-audit", "--no-fund", "--no-save", "--no-package-lock", "--ignore-scripts", "--silent",
			"cloudevents@"+servers.CloudEventsNode, "standardwebhooks@"+servers.StandardWebhooksNode)
		if err != nil {
			return err
		}
		return f.run(ctx, work, nil, python, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:",
			"--disable-pip-version-check", "--root-user-action", "ignore", "--target", filepath.Join(out, "python"),
			"cloudevents=="+servers.CloudEventsPython, "standardwebhooks=="+servers.StandardWebhooksPython)
	})
}
