package servers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"testing"
)

// BuiltTool is a program that is built from a Go module into the cache.
type BuiltTool struct {
	Name    string
	Package string
	Version string
}

// Dir is where the cache has the program.
func (b BuiltTool) Dir(cache string) string { return filepath.Join(cache, b.Name+"-"+b.Version) }

// BuiltTools returns those that "make tools" builds: they check what is packaged.
func BuiltTools() []BuiltTool {
	return []BuiltTool{
		{"helm", "helm.sh/helm/v4/cmd/helm", "4.3.1"},
		{"kustomize", "sigs.k8s.io/kustomize/kustomize/v5", "5.7.1"},
		{"goreleaser", "github.com/goreleaser/goreleaser/v2", "2.15.4"},
	}
}

// PythonTool is a program for Python that pip installs into the cache.
type PythonTool struct {
	Name    string // of its module
	Package string
	Version string
}

// Dir is where the cache has the program, as a folder for Python.
func (p PythonTool) Dir(cache string) string { return filepath.Join(cache, p.Package+"-"+p.Version) }

// Command runs the program of a folder that [FindTool] has returned.
func (p PythonTool) Command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "python3", append([]string{"-m", p.Name}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

// MkDocs makes the site of the documentation; its theme brings it along.
var MkDocs = PythonTool{"mkdocs", "mkdocs-material", "9.8.1"}

// Schemathesis sends an API what its description allows, and what it doesn't.
var Schemathesis = PythonTool{"schemathesis.cli", "schemathesis", "4.32.5"}

// PythonTools returns those of pip.
func PythonTools() []PythonTool { return []PythonTool{MkDocs, Schemathesis} }

// PackagedTools returns the others, each a package of Debian and of Homebrew.
func PackagedTools() []string {
	return []string{"buildah", "bash-completion", "zsh", "fish", "mandoc", "rpm"}
}

// bashCompletion is what that package installs in place of a program.
const bashCompletion = "/usr/share/bash-completion/bash_completion"

// What checks objects of Kubernetes: a program for Python, and Go modules with the definitions of kinds that operators
// add.
const (
	KubernetesValidateVersion = "1.37.0"
	KEDA                      = "github.com/kedacore/keda/v2@v2.21.0"
	PrometheusOperator        = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
)

// KubernetesDir is where the cache has them: the program in python, the definitions in kinds.
func KubernetesDir(cache string) string {
	return filepath.Join(cache, "kubernetes-"+KubernetesValidateVersion+"-"+path.Base(KEDA)+"-"+path.Base(PrometheusOperator))
}

// findKubernetes returns [KubernetesDir].
func findKubernetes() (dir string, err error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir = KubernetesDir(cache)
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("kubernetes-validate is %w: go run ./proof/fetch kubernetes", ErrNotFound)
	}
	return dir, nil
}

// Kubernetes returns a command that checks objects of Kubernetes against its schemas, and the folder with definitions
// of further kinds. The test is skipped, or fails where servers are required, if there are none.
func Kubernetes(t testing.TB, args ...string) (validate *exec.Cmd, kinds string) {
	t.Helper()
	need(t, "kubernetes")
	dir, err := findKubernetes()
	if err != nil {
		missing(t, err)
	}
	validate = exec.CommandContext(t.Context(), "python3", append([]string{"-m", "kubernetes_validate"}, args...)...)
	validate.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(dir, "python"), "PYTHONDONTWRITEBYTECODE=1")
	return validate, filepath.Join(dir, "kinds")
}

// FindTool returns the path of one of [BuiltTools] or [PackagedTools], or the folder of "kubernetes" or of one of
// [PythonTools], by its package. The error wraps [ErrNotFound] when it isn't installed.
func FindTool(name string) (string, error) {
	if name == "kubernetes" {
		return findKubernetes()
	}
	for _, p := range PythonTools() {
		if p.Package == name {
			return p.find()
		}
	}
	all := BuiltTools()
	if _, err := os.Stat(bashCompletion); err == nil && name == "bash-completion" {
		return bashCompletion, nil
	}
	i := slices.IndexFunc(all, func(b BuiltTool) bool { return b.Name == name })
	if i < 0 {
		if found := lookUp(name, "/opt/homebrew/bin/"+name); found != "" {
			return found, nil
		}
		return "", fmt.Errorf("%s is %w; on Debian and Ubuntu: sudo apt-get install %s", name, ErrNotFound, name)
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	built := executable(all[i].Dir(cache), name)
	if _, err := os.Stat(built); err != nil {
		return "", fmt.Errorf("%s is %w: go run ./proof/fetch %s", name, ErrNotFound, name)
	}
	return built, nil
}

func (p PythonTool) find() (dir string, err error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir = p.Dir(cache)
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("%s is %w: go run ./proof/fetch %[1]s", p.Package, ErrNotFound)
	}
	return dir, nil
}

// Tool is [FindTool] for a test, which is skipped, or fails where servers are required, if there is none.
func Tool(t testing.TB, name string) string {
	t.Helper()
	need(t, name)
	found, err := FindTool(name)
	if err != nil {
		missing(t, err)
	}
	return found
}
