package servers

import (
	"fmt"
	"os"
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

// PackagedTools returns the others, each a package of Debian and of Homebrew.
func PackagedTools() []string { return []string{"buildah", "zsh", "fish", "mandoc"} }

// FindTool returns the path of one of [BuiltTools] or [PackagedTools]. The error wraps [ErrNotFound] when it isn't
// installed.
func FindTool(name string) (string, error) {
	all := BuiltTools()
	i := slices.IndexFunc(all, func(b BuiltTool) bool { return b.Name == name })
	if i < 0 {
		if path := lookUp(name, "/opt/homebrew/bin/"+name); path != "" {
			return path, nil
		}
		return "", fmt.Errorf("%s is %w; on Debian and Ubuntu: sudo apt-get install %s", name, ErrNotFound, name)
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	path := executable(all[i].Dir(cache), name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is %w: go run ./proof/fetch %s", name, ErrNotFound, name)
	}
	return path, nil
}

// Tool is [FindTool] for a test, which is skipped, or fails where servers are required, if there is none.
func Tool(t testing.TB, name string) string {
	t.Helper()
	skipShort(t)
	path, err := FindTool(name)
	if err != nil {
		missing(t, err)
	}
	return path
}
