package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/relay"
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
		verdict: admin.Verdict{Finding: admin.Finding{State: admin.StateBroken, Cause: "the relay has just started"}}}
}

func (w *watch) run(ctx context.Context) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			connect.Close(conn)
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
			connect.Close(conn)
		}
		w.logger.Debug("the database could not be looked at", "error", err)
		w.set(time.Now(), admin.Verdict{Finding: admin.Finding{State: admin.StateBroken, Cause: err.Error(), Advice: "check the database"}}, nil)
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
	verdict.At = w.at
	return readiness{verdict, relay, each}
}

// noteTable passes on the state of a destination with a table of its own, which has no cursor to be asked
// for it.
func (d *Daemon) noteTable(name string, state relay.State, err error) {
	v := admin.Verdict{Finding: admin.Finding{State: admin.State(state)}} // both have the same words
	if state == relay.StateWaiting {
		v = admin.Verdict{Finding: admin.Finding{State: admin.StateIdle, Cause: "another relay reads the table"}}
	}
	if err != nil {
		v.Cause = err.Error()
	}
	d.watch.note(name, v, readsOutbox(d.cfg))
}

// note keeps the verdict on a destination with a table of its own. others means that there are destinations
// which have theirs from the outbox.
func (w *watch) note(name string, v admin.Verdict, others bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tables == nil {
		w.tables = make(map[string]admin.Verdict)
	}
	w.tables[name] = v
	if !others {
		w.at, w.verdict = time.Now(), worst(w.tables)
	}
}

// worst is the verdict on all: the one that delivers least.
func worst(all map[string]admin.Verdict) admin.Verdict {
	list := slices.Collect(maps.Values(all))
	return slices.MinFunc(list, func(a, b admin.Verdict) int {
		rank := func(v admin.Verdict) int {
			if v.State.Delivers() {
				return 1
			}
			return 0
		}
		return cmp.Compare(rank(a), rank(b))
	})
}
