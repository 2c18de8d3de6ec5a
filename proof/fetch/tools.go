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
	for _, p := range servers.PythonTools() {
		targets = append(targets, target{p.Package, func(f fetcher, ctx context.Context) error { return f.python(ctx, p) }})
	}
	return append(targets, target{"kubernetes", fetcher.kubernetes})
}

// python installs a program of pip.
func (f fetcher) python(ctx context.Context, p servers.PythonTool) error {
	if _, err := servers.FindTool(p.Package); !errors.Is(err, servers.ErrNotFound) {
		return err
	}
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
	if _, err := servers.FindTool("kubernetes"); !errors.Is(err, servers.ErrNotFound) {
		return err
	}
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
