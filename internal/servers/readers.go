package servers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Readers are the official libraries, for other languages, of the formats that are sent here. "make servers" installs
// them.
const (
	CloudEventsNode        = "10.0.0"
	StandardWebhooksNode   = "1.1.1"
	CloudEventsPython      = "2.2.0"
	StandardWebhooksPython = "1.1.0"
)

// ReadersDir is where the cache has the libraries: those for Node in node_modules, those for Python in python.
func ReadersDir(cache string) string {
	return filepath.Join(cache, "readers-"+CloudEventsNode+"-"+StandardWebhooksNode+"-"+CloudEventsPython+"-"+StandardWebhooksPython)
}

// FindReaders returns where the libraries are. The error wraps [ErrNotFound] when they or a language are missing, and says
// which.
func FindReaders() (dir string, err error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir = ReadersDir(cache)
	for _, library := range []string{"node_modules/cloudevents", "node_modules/standardwebhooks", "python/cloudevents", "python/standardwebhooks"} {
		if _, err := os.Stat(filepath.Join(dir, library)); err != nil {
			return "", fmt.Errorf("the library %s is %w", library, ErrNotFound)
		}
	}
	for _, program := range []string{"node", "python3"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("%s, which the libraries are for, is %w", program, ErrNotFound)
		}
	}
	return dir, nil
}

// ReaderCommands returns commands that run a script in each of the languages with the libraries at hand: the path of a
// script without its ending, ".js" or ".py", is completed. The test is skipped, or fails where servers are required, if
// the libraries aren't installed.
func ReaderCommands(t testing.TB, script string) map[string]*exec.Cmd {
	t.Helper()
	skipShort(t)
	dir, err := FindReaders()
	if err != nil {
		missing(t, err)
	}
	node, python := exec.CommandContext(t.Context(), "node", script+".js"), exec.CommandContext(t.Context(), "python3", script+".py")
	node.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(dir, "node_modules"))
	python.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(dir, "python"), "PYTHONDONTWRITEBYTECODE=1")
	return map[string]*exec.Cmd{"node": node, "python": python}
}
