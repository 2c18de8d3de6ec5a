package daemon

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pgoutbox/outbox/cmd/internal/report"
)

// listen opens the address of health and metrics, before anything else is started.
func listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s for health and metrics: %w: another relay may run here: change "+
			"http.listen, or make it empty for none", address, err)
	}
	return l, nil
}

// public reports whether others than this machine can reach the address.
func public(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && !tcp.IP.IsLoopback()
}

// writeProbe answers a probe: 200 if it is well, otherwise 503.
func writeProbe(rw http.ResponseWriter, well bool, body any) {
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

// handler serves what is one database's, below a prefix that has been taken off.
func (u *unit) handler(prefix string) http.Handler {
	mux := http.NewServeMux()
	if u.api != nil {
		mux.Handle("/api/", u.api)
		mux.Handle("/console/", http.StripPrefix("/console", u.page))
		mux.Handle("GET /{$}", http.RedirectHandler(prefix+"/console/", http.StatusFound))
	}
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		r := u.watch.readiness()
		writeProbe(rw, r.Ready, r)
	})
	mux.HandleFunc("GET /healthz/destinations", func(rw http.ResponseWriter, _ *http.Request) {
		h := u.watch.health()
		writeProbe(rw, h.Delivers(), h)
	})
	return mux
}

// prefix is the path below which a unit stands. The configuration allows no name that has to be escaped in it.
func (u *unit) prefix() string { return "/databases/" + u.Name }

// route makes the handler for the units that there are. Each stands below /databases/NAME; one that is alone stands at
// the top, too.
func (d *Daemon) route() {
	mux := http.NewServeMux()
	units := slices.Clone(d.units)
	for _, u := range units {
		prefix := u.prefix()
		mux.Handle(prefix+"/", http.StripPrefix(prefix, u.handler(prefix)))
		if !d.options.Several {
			mux.Handle("/", u.handler(""))
		}
	}
	if d.options.Several {
		mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, r *http.Request) {
			ready, body := d.ready(units, r.URL.Query().Get("all") == "true")
			writeProbe(rw, ready, body)
		})
		mux.HandleFunc("GET /healthz/destinations", func(rw http.ResponseWriter, r *http.Request) {
			well, body := d.delivering(units, r.URL.Query().Get("all") == "true")
			writeProbe(rw, well, body)
		})
		if d.cfg.HTTP.API {
			mux.HandleFunc("GET "+report.KnownPath, d.known)
		}
	}
	mux.HandleFunc("GET /livez", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		text := "alive\n"
		for _, u := range units {
			for _, gone := range u.watch.gaveUp() {
				text += d.withDatabase(u.Database, errors.New(gone)).Error() + "\n"
			}
		}
		_, _ = io.WriteString(rw, text)
	})
	if d.member != nil {
		mux.Handle("GET /fleet", d.member.handler())
		if d.cfg.HTTP.API {
			mux.HandleFunc("GET "+report.FleetPath, d.fleet)
		}
	}
	// Exemplars are part of OpenMetrics alone.
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	if i := slices.IndexFunc(units, func(u *unit) bool { return u.page != nil }); i >= 0 && d.options.Several {
		mux.Handle("GET /{$}", http.RedirectHandler(units[i].prefix()+"/console/databases", http.StatusFound))
	}
	d.routed.Store(&units)
	var handler http.Handler = mux
	d.handler.Store(&handler)
}

// serveHTTP serves what route has made last, until ctx ends.
func (d *Daemon) serveHTTP(ctx context.Context, l net.Listener) {
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*d.handler.Load()).ServeHTTP(w, r) }),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(d.logger.Handler(), slog.LevelDebug),
	}
	(&connections{limit: maxConnections}).guard(server)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		<-ctx.Done()
		for _, u := range d.units { // none changes any more
			u.endStreams() // they don't end by themselves
		}
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(ending) != nil {
			_ = server.Close()
		}
	}()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		d.logger.Error("health and metrics are gone", "error", err)
	}
	<-closed
}

// listen opens the port, nil if there is none.
func (d *Daemon) listen() (net.Listener, error) {
	if d.cfg.HTTP.Listen == "" {
		return nil, nil
	}
	listener, err := listen(d.cfg.HTTP.Listen)
	if err != nil {
		return nil, err
	}
	if d.exposed = public(listener.Addr()); d.exposed {
		if exposed := d.cfg.HTTP.Exposed(); exposed != "" {
			_ = listener.Close() // no request has been served
			return nil, fmt.Errorf("http.listen is %s: %s", d.cfg.HTTP.Listen, exposed)
		}
		d.logger.Warn("health and metrics can be read from other machines, without authentication", "address", listener.Addr().String())
	}
	if secure := d.cfg.HTTP.TLS.Config(); secure != nil {
		listener = tls.NewListener(listener, secure)
	}
	return listener, nil
}
