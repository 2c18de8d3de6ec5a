package servers

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/pgoutbox/outbox/internal/child"
)

// PrometheusConfig says what is scraped, once a second.
type PrometheusConfig struct {
	// Targets are addresses, host:port. Required.
	Targets []string
}

// Prometheus scrapes and answers queries, on 127.0.0.1.
type Prometheus struct {
	Server
}

// startPrometheus starts a server and returns when it answers. The error wraps [ErrNotFound] when it isn't installed.
func startPrometheus(ctx context.Context, config PrometheusConfig) (*Prometheus, error) {
	path, _, err := FindPrometheus()
	p := &Prometheus{}
	return orNone(p, p.launch(ctx, err, kind{
		name: "Prometheus",
		place: func() error {
			text := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs: [{job_name: outbox, static_configs: [{targets: %q}]}]\n",
				config.Targets)
			return os.WriteFile(filepath.Join(p.folder, "prometheus.yml"), []byte(text), 0o600)
		},
		command: func() child.Command {
			return child.Command{Path: path, Args: []string{"--config.file=" + filepath.Join(p.folder, "prometheus.yml"),
				"--storage.tsdb.path=" + filepath.Join(p.folder, "data"), fmt.Sprintf("--web.listen-address=127.0.0.1:%d", p.ports[0])}}
		},
		ready: func(ctx context.Context, addr string) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/-/ready", nil)
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("Prometheus answers %s", response.Status)
			}
			return nil
		},
	}))
}

// OwnPrometheus returns a server that is the test's alone, closed at its end.
func OwnPrometheus(t testing.TB, config PrometheusConfig) *Prometheus {
	t.Helper()
	return own(t, startPrometheus, []PrometheusConfig{config})
}

// FindPrometheus returns the paths of Prometheus and of its tool. The error wraps [ErrNotFound] when one is missing.
func FindPrometheus() (server, promtool string, err error) {
	server = lookUp("prometheus", "/opt/homebrew/bin/prometheus")
	promtool = lookUp("promtool", "/opt/homebrew/bin/promtool")
	if server == "" || promtool == "" {
		return "", "", fmt.Errorf("prometheus with promtool is %w; on Debian and Ubuntu: sudo apt-get install prometheus", ErrNotFound)
	}
	return server, promtool, nil
}

// Promtool returns the path of Prometheus' tool. The test is skipped, or fails where servers are required, if there is
// none.
func Promtool(t testing.TB) string {
	t.Helper()
	need(t, "prometheus")
	_, path, err := FindPrometheus()
	if err != nil {
		missing(t, err)
	}
	return path
}
