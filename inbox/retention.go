package inbox

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// RetentionDB is Retention's database: a *pgxpool.Pool or a *pgx.Conn.
type RetentionDB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Retention deletes the records of messages that were applied long ago. Three tables hold the records by turns, and the
// oldest is emptied by TRUNCATE, so the cost doesn't depend on their number.
//
// A record is found for at least the window (health.SetInboxWindow; seven days by default) after its transaction has
// ended, and for about twice as long at most. A message that comes again after its record is deleted is applied again,
// unless its sequence number prevents that (Config.Gaps). So the window must be longer than the time for which brokers
// keep unacknowledged messages, and longer than the time by which operators reset consumers.
//
// Without a running Retention, nothing is deleted. Any number may run, in one process or several.
type Retention struct {
	db  RetentionDB
	cfg RetentionConfig
}

// RetentionConfig tunes a [Retention]. The zero value means the stated defaults.
type RetentionConfig struct {
	// Interval is the pause between two passes. Default 1 min.
	Interval time.Duration

	// Observe, if not nil, gets the result of each pass. It must not block.
	Observe func(RetentionReport)

	// Logger reports emptied tables and trouble; nil: slog.Default.
	Logger *slog.Logger
}

// RetentionReport is the result of one pass.
type RetentionReport struct {
	Emptied string // the table that was emptied; "" if none
	Turned  bool   // from now on records go to another table
	Held    string // why the oldest records must stay although their time is over; "" if they need not
	Err     error
}

// NewRetention returns a Retention that works on db.
func NewRetention(db RetentionDB, cfg RetentionConfig) (*Retention, error) {
	var faults settings.Faults
	faults.Need(settings.Given(db), "", "there is no database")
	settings.Positive(&faults, "Interval", &cfg.Interval, time.Minute)
	if err := faults.Err(); err != nil {
		return nil, fmt.Errorf("inbox: retention: %w", err)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(RetentionReport) {}
	}
	cfg.Logger = settings.Logger(cfg.Logger)
	return &Retention{db: db, cfg: cfg}, nil
}

// Run maintains the records until ctx ends, and then returns nil.
func (r *Retention) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		_ = r.Look(ctx) // Look has reported the error
		timer.Reset(r.cfg.Interval)
	}
}

// Look runs one pass, for callers with a clock of their own, such as cron. Concurrent calls, by any number of
// processes, wait for each other, and don't repeat what one has done.
func (r *Retention) Look(ctx context.Context) RetentionReport {
	report := r.look(ctx)
	if ctx.Err() == nil {
		r.report(report)
	}
	return report
}

func (r *Retention) report(report RetentionReport) {
	if report.Err != nil {
		r.cfg.Logger.Warn("the records of the inbox were not looked after", "error", report.Err)
	}
	if report.Emptied != "" {
		r.cfg.Logger.Info("records of the inbox forgotten", "table", report.Emptied)
	}
	if report.Held != "" {
		r.cfg.Logger.Debug("records of the inbox kept", "reason", report.Held)
	}
	r.cfg.Observe(report)
}

// look does whatever is due. It notes that the previous table has no writer any more. It makes the next table current,
// and then notes the same again, because recording takes longer until then. It empties the table that is neither
// current nor previous. Each step is a transaction of its own.
func (r *Retention) look(ctx context.Context) (report RetentionReport) {
	for _, step := range []func(context.Context, *RetentionReport) error{r.close, r.turn, r.close, r.empty} {
		if err := step(ctx, &report); err != nil {
			if sqlstate.Of(err) == "55P03" {
				report.Held = "a transaction that has applied messages is still open"
				continue
			}
			report.Err = err
			return report
		}
	}
	return report
}

// rotation is the row of outbox.inbox_rotation.
type rotation struct {
	current int
	closed  bool
	due     bool // the previous table has been closed for as long as its records are kept
	emptied bool
}

// locked runs f with the rotation; no other process changes it in the meantime.
func (r *Retention) locked(ctx context.Context, f func(pgx.Tx, rotation) error) error {
	return pgx.BeginFunc(ctx, r.db, func(tx pgx.Tx) error {
		// A wait for a table's lock blocks later transactions, so it must be short.
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '200ms'; SET LOCAL row_security = off`); err != nil {
			return err
		}
		var s rotation
		err := tx.QueryRow(ctx, `SELECT current, closed_at IS NOT NULL, coalesce(closed_at + keep <= clock_timestamp(), false), emptied
			FROM outbox.inbox_rotation WHERE single FOR UPDATE`).Scan(&s.current, &s.closed, &s.due, &s.emptied)
		if err != nil {
			return err
		}
		return f(tx, s)
	})
}

// close notes that the previous table is no longer written: once close has the lock, every transaction that has
// recorded something in that table has ended. A transaction that took it for the current table and hasn't written yet
// will find that the turn has moved on, and record in the current one (quickSQL, outbox.receive).
func (r *Retention) close(ctx context.Context, _ *RetentionReport) error {
	err := r.locked(ctx, func(tx pgx.Tx, s rotation) error {
		if s.closed {
			return nil
		}
		if _, err := tx.Exec(ctx, fmt.Sprintf("LOCK TABLE outbox.inbox_%d IN SHARE MODE", (s.current+2)%3)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE outbox.inbox_rotation SET closed_at = clock_timestamp() WHERE single`)
		return err
	})
	return wrap("close the table of earlier records", err)
}

// turn makes the next table the current one. From then on, the previous table but one is no longer read: its records
// are older than the window.
func (r *Retention) turn(ctx context.Context, report *RetentionReport) error {
	err := r.locked(ctx, func(tx pgx.Tx, s rotation) error {
		if !s.due || !s.emptied {
			return nil
		}
		_, err := tx.Exec(ctx, `UPDATE outbox.inbox_rotation SET current = (current + 1) % 3, began_at = clock_timestamp(),
			closed_at = NULL, emptied = false WHERE single`)
		report.Turned = err == nil
		return err
	})
	return wrap("pass on the turn", err)
}

// empty truncates the table that is no longer read. Only transactions from before the turn still read it, and the lock
// waits for their end.
func (r *Retention) empty(ctx context.Context, report *RetentionReport) error {
	err := r.locked(ctx, func(tx pgx.Tx, s rotation) error {
		if s.emptied {
			return nil
		}
		table := fmt.Sprintf("outbox.inbox_%d", (s.current+1)%3)
		if _, err := tx.Exec(ctx, "TRUNCATE TABLE "+table); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE outbox.inbox_rotation SET emptied = true WHERE single`)
		if err == nil {
			report.Emptied = table
		}
		return err
	})
	return wrap("empty the table of the oldest records", err)
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
