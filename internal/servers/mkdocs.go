package servers

import (
	"fmt"
	"os"
	"path/filepath"
)

// MkDocsMaterial is the version of the theme, which brings the generator of the site with it.
const MkDocsMaterial = "9.8.1"

// MkDocsDir is where the cache has them, as a folder for Python.
func MkDocsDir(cache string) string { return filepath.Join(cache, "mkdocs-material-"+MkDocsMaterial) }

// findMkDocs returns [MkDocsDir].
func findMkDocs() (dir string, err error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir = MkDocsDir(cache)
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("MkDocs is %w: go run ./proof/fetch mkdocs", ErrNotFound)
	}
	return dir, nil
}
