package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/console"
)

// listen opens the address of health and metrics, before anything else is started.
func listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s for health and metrics: %w: another relay may run here: change http.listen, or make it empty for none", address, err)
	}
	return l, nil
}

// public reports whether others than this machine can reach the address.
func public(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && !tcp.IP.IsLoopback()
}

// answer is a probe's: 200 if it is well, otherwise 503.
func answer(rw http.ResponseWriter, well bool, body any) {
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set("Cache-Control", "no-store")
	if !well {
		rw.WriteHeader(http.StatusServiceUnavailable)
	}
	e := json.NewEncoder(rw)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(body) // the client has gone
}

// serveHTTP serves health and metrics, and the API with its console, which may be nil, until ctx ends.
func serveHTTP(ctx context.Context, l net.Listener, w *watch, m *metrics, api *rest.API, page *console.Console, logger *slog.Logger) {
	mux := http.NewServeMux()
	if api != nil {
		mux.Handle("/api/", api)
		mux.Handle("/console/", http.StripPrefix("/console", page))
		mux.Handle("GET /{$}", http.RedirectHandler("/console/", http.StatusFound))
	}
	mux.HandleFunc("GET /livez", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(rw, "alive\n")
	})
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		r := w.readiness()
		answer(rw, r.Ready, r)
	})
	mux.HandleFunc("GET /healthz/destinations", func(rw http.ResponseWriter, _ *http.Request) {
		h := w.health()
		answer(rw, h.State.Delivers(), h)
	})
	// Exemplars are part of OpenMetrics alone.
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	(&crowd{limit: maxConnections}).guard(server)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		<-ctx.Done()
		if api != nil {
			api.Close() // streams don't end by themselves
			page.Close()
		}
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(ending) != nil {
			_ = server.Close()
		}
	}()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		logger.Error("health and metrics are gone", "error", err)
	}
	<-closed
}
