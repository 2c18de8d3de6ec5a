package servers

import (
	"fmt"
	"os"
	"testing"
)

// FindChromium returns the path of Chromium, or of a browser that is made from it: the one in OUTBOX_TEST_CHROMIUM, if
// that is set. The error wraps [ErrNotFound] when there is none.
func FindChromium() (string, error) {
	if path := os.Getenv("OUTBOX_TEST_CHROMIUM"); path != "" {
		return path, nil
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path := lookUp(name, "/opt/homebrew/bin/"+name); path != "" {
			return path, nil
		}
	}
	return "", fmt.Errorf("chromium is %w; on Debian and Ubuntu: sudo apt-get install chromium", ErrNotFound)
}

// Chromium returns the path of Chromium. The test is skipped, or fails where servers are required, if there is none.
func Chromium(t testing.TB) string {
	t.Helper()
	need(t, "chromium")
	path, err := FindChromium()
	if err != nil {
		missing(t, err)
	}
	return path
}

// Axe returns the script that looks for what keeps people from using a page, as [Chromium] does.
func Axe(t testing.TB) []byte {
	t.Helper()
	cache, err := CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(AxeDir(cache) + "/axe.min.js")
	if err != nil {
		missing(t, fmt.Errorf("axe-core is %w (%w): go run ./proof/fetch axe", ErrNotFound, err))
	}
	return script
}
