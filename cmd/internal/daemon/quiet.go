package daemon

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/dial"
)

const (
	// quietEvery is the pause between two looks at a database where nothing happens: these ask for a digest, on the
	// relay's own connection. After quietFor it is looked at as a whole once more, because a digest doesn't have
	// everything: rights, indexes, what a standby has.
	quietEvery = 10 * time.Second
	quietFor   = 2 * time.Minute
)

// quiet is what a watch keeps of a database where nothing happens, so that it needs no connection of its own.
type quiet struct {
	lend   func(context.Context, func(*pgx.Conn) error) error // nil: no connection is lent
	digest string                                             // of the last report; "": something happens
	since  time.Time                                          // by this process's clock, when that was read
}

// borrows makes the watch use a connection that is lent while nothing happens.
func (w *watch) borrows(lend func(context.Context, func(*pgx.Conn) error) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.quiet.lend = lend
}

// unchanged asks on the relay's connection whether the last report is still true, and dates it anew then.
func (w *watch) unchanged(ctx context.Context) bool {
	w.mu.Lock()
	q := w.quiet
	watched := time.Since(w.seen) < lookEvery
	w.mu.Unlock()
	if q.digest == "" || watched || time.Since(q.since) > quietFor {
		return false
	}
	began := time.Now()
	at, digest, err := w.askDigest(ctx)
	if err != nil || digest != q.digest {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.take(w.report.Unchanged(at), began)
	return true
}

// staysTrue reports whether a report that was read after the digest stays true until that changes. A table of its own
// may be written to without a change of the digest.
func (w *watch) staysTrue(found *health.Report, digest string) bool {
	return digest != "" && len(w.own()) == 0 && found.AtRest()
}

// askDigest returns "" if no connection is lent.
func (w *watch) askDigest(ctx context.Context) (at time.Time, digest string, err error) {
	w.mu.Lock()
	lend := w.quiet.lend
	w.mu.Unlock()
	if lend == nil {
		return at, "", nil
	}
	err = lend(ctx, func(conn *pgx.Conn) (err error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dial.AnswerWithin)
		defer cancel()
		at, digest, err = health.Digest(ctx, conn)
		return err
	})
	return at, digest, err
}
