package servers

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/pgoutbox/outbox/internal/child"
)

// MotoVersion is the version that "make servers" installs.
const MotoVersion = "5.2.5"

// MotoDir is where the cache has moto and what it needs, as a folder for PYTHONPATH.
func MotoDir(cache string) string { return filepath.Join(cache, "moto-"+MotoVersion) }

// FindMoto returns a Python and the folder of moto. The error wraps [ErrNotFound] when one of them is missing, and says
// which.
func FindMoto() (python, site string, err error) {
	cache, err := CacheDir()
	if err != nil {
		return "", "", err
	}
	site = MotoDir(cache)
	if _, err := os.Stat(filepath.Join(site, "moto", "server.py")); err != nil {
		return "", "", fmt.Errorf("moto is %w", ErrNotFound)
	}
	if python, err = exec.LookPath("python3"); err != nil {
		return "", "", fmt.Errorf("Python, which moto needs, is %w", ErrNotFound)
	}
	return python, site, nil
}

// Moto imitates SNS and SQS, among much else of Amazon's, on 127.0.0.1; it takes any credentials, keeps everything in
// memory, and gets slow with thousands of messages in a queue.
type Moto struct {
	Server
}

func startMoto(ctx context.Context, _ struct{}) (*Moto, error) {
	python, site, err := FindMoto()
	m := &Moto{}
	return orNone(m, m.launch(ctx, err, kind{
		name: "moto " + MotoVersion,
		command: func() child.Command {
			return child.Command{
				Path: python,
				Args: []string{"-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", strconv.Itoa(m.Port())},
				Env:  append(os.Environ(), "PYTHONPATH="+site, "PYTHONDONTWRITEBYTECODE=1"),
			}
		},
		ready: func(ctx context.Context, addr string) error { // a page that only moto has
			return answersHTTP(ctx, http.MethodGet, "http://"+addr+"/moto-api/", "", nil)
		},
	}))
}

// URL returns the endpoint for a client: http://127.0.0.1:PORT.
func (m *Moto) URL() string { return "http://" + m.addr }

// TestMoto returns a server that all tests of this binary share, started on first use. A test takes names of its own.
// The test is skipped, or fails where servers are required, if there is no moto.
func TestMoto(t testing.TB) *Moto {
	t.Helper()
	return shareGiven(t, &Moto{}, given{}, startMoto, nil)
}
