package main

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
)

// watch looks at the database every few seconds, for metrics and /readyz: scrapes and probes cost it
// nothing.
type watch struct {
	conn         func(context.Context) (*pgx.Conn, error)
	destinations []string
	metrics      *metrics
	logger       *slog.Logger

	mu      sync.Mutex
	at      time.Time
	verdict admin.Verdict
	each    map[string]admin.Verdict
	tables  map[string]admin.Verdict // on destinations with tables of their own
}

const watchPause = 5 * time.Second

func newWatch(destinations []string, m *metrics, logger *slog.Logger, conn func(context.Context) (*pgx.Conn, error)) *watch {
	return &watch{conn: conn, destinations: destinations, metrics: m, logger: logger,
		verdict: admin.Verdict{State: admin.StateBroken, Cause: "the relay has just started"}}
}

func (w *watch) run(ctx context.Context) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			disconnect(conn)
		}
	}()
	for pause := time.Second; ctx.Err() == nil; pause = watchPause {
		began := time.Now()
		conn = w.look(ctx, conn)
		// A look that is slow, because the backlog is long, is taken less often.
		select {
		case <-time.After(max(pause, 20*time.Since(began))):
		case <-ctx.Done():
		}
	}
}

// look takes one, and returns the connection for the next time, nil if it broke.
func (w *watch) look(ctx context.Context, conn *pgx.Conn) *pgx.Conn {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	var err error
	if conn == nil {
		conn, err = w.conn(ctx)
	}
	var report *admin.Report
	if err == nil {
		report, err = admin.Status(ctx, conn)
	}
	if err != nil {
		if conn != nil {
			disconnect(conn)
		}
		w.logger.Debug("the database could not be looked at", "error", err)
		w.set(time.Now(), admin.Verdict{State: admin.StateBroken, Cause: err.Error(), Next: "check the database"}, nil)
		return nil
	}
	verdict, each := report.On(w.destinations)
	w.metrics.sample(report, func(name string) bool { _, ok := each[name]; return ok })
	w.set(report.At, verdict, each)
	return conn
}

func (w *watch) set(at time.Time, verdict admin.Verdict, each map[string]admin.Verdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at, w.verdict, w.each = at, verdict, each
}

// readiness is the body of /readyz.
type readiness struct {
	admin.Verdict
	At           time.Time                `json:"at,omitzero"`
	Relay        string                   `json:"relay"`
	Destinations map[string]admin.Verdict `json:"destinations,omitempty"`
}

func (w *watch) readiness(relay string) readiness {
	w.mu.Lock()
	defer w.mu.Unlock()
	each := maps.Clone(w.tables)
	if each == nil {
		each = w.each
	} else {
		maps.Copy(each, w.each)
	}
	verdict := w.verdict
	if bad := w.tables; verdict.State.Delivers() && len(bad) > 0 && !worst(bad).State.Delivers() {
		verdict = worst(bad)
	}
	return readiness{verdict, w.at, relay, each}
}
