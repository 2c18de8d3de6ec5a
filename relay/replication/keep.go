package replication

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
)

func (s *session) log() *slog.Logger {
	return s.source.cfg.Table.Logger.With("destination", s.source.destination)
}

// keep starts the goroutine that looks after what moves without a settlement, until the session is closed: it stores
// how far the log was read when nothing is in flight, tells the server what is stored, asks a silent one where
// it is, watches the slot and what the operator wants. It does so while nobody calls Next, too: a full pipeline must not
// look like a dead one to the server.
func (s *session) keep() {
	s.helpers.Go(func() {
		ticker := time.NewTicker(min(s.ttl()/3, s.statusInterval(), time.Second))
		defer ticker.Stop()
		watched := time.Now()
		for {
			select {
			case <-s.ctx.Done():
				return
			case <-s.table.Failed():
				s.mu.Lock()
				w := s.wire
				s.mu.Unlock()
				if w != nil {
					w.close() // wakes Next up
				}
				return
			case <-ticker.C:
			}
			watch := time.Since(watched) > watchEvery
			if watch {
				watched = time.Now()
			}
			if err := s.tend(watch); err != nil && s.table.Failure() == nil && s.ctx.Err() == nil {
				s.log().Debug("looking after the slot failed", "error", err)
			}
		}
	})
}

const watchEvery = 10 * time.Second

// statusInterval is how often the server hears of a reader that has nothing to say.
func (s *session) statusInterval() time.Duration {
	if s.senderTimeout <= 0 {
		return 10 * time.Second
	}
	return max(min(time.Duration(s.senderTimeout)*time.Millisecond/3, 10*time.Second), 10*time.Millisecond)
}

func (s *session) tend(watch bool) error {
	s.mu.Lock()
	streaming, w := s.streaming, s.wire
	var due, silent bool
	if streaming {
		due = s.progress.position != s.stored.position || s.progress.partial != s.stored.partial
		silent = min(time.Since(s.heardAt), time.Since(s.asked)) > s.source.cfg.Heartbeat
	}
	s.mu.Unlock()
	// Not the session's context: a write that Close interrupts would take the connection with it.
	ctx := context.Background()
	if !streaming || w == nil {
		return s.readMode()
	}
	if due {
		if err := s.store(ctx, nil); err != nil {
			return err
		}
	} else if err := s.readMode(); err != nil {
		return err
	}
	if err := s.confirm(w, false); err != nil {
		return err
	}
	if silent {
		if err := s.ask(w); err != nil {
			return err
		}
	}
	if watch {
		return s.watch()
	}
	return nil
}

// confirm tells the server what is stored, if it doesn't know or hasn't heard for long. It never says more
// than the database has: so a slot that is beyond the stored position was moved by somebody else.
func (s *session) confirm(w *wire, last bool) error {
	s.mu.Lock()
	position := s.stored.position
	news := position > s.confirmed
	due := last || news || time.Since(s.told) > s.statusInterval()
	if due {
		s.confirmed, s.told = max(s.confirmed, position), time.Now()
	}
	received, confirmed := s.received, s.confirmed
	s.mu.Unlock()
	if !due {
		return nil
	}
	return w.status(received, confirmed, false)
}

// standbysSQL says whether commits wait for synchronous standbys. The log is sent before these have it.
const standbysSQL = "current_setting('synchronous_standby_names') <> ''"

// readMode asks what the operator wants.
func (s *session) readMode() error {
	var mode Mode
	var standbys bool
	err := s.table.Read(func(conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(context.Background(), s.ttl())
		defer cancel()
		err := conn.QueryRow(ctx, "SELECT mode, "+standbysSQL+" FROM outbox.slots WHERE destination = $1", s.source.destination).Scan(&mode, &standbys)
		if errors.Is(err, pgx.ErrNoRows) {
			return relay.ErrLeaseLost // the destination was dropped
		}
		return err
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode, s.standbys = mode, standbys
	return nil
}

// ask has the server say how far it has read the log.
func (s *session) ask(w *wire) error {
	s.mu.Lock()
	received, confirmed := s.received, s.confirmed
	s.asked = time.Now()
	s.mu.Unlock()
	return w.status(received, confirmed, true)
}

// watch warns of a slot that is about to be invalidated.
func (s *session) watch() error {
	return s.table.Read(func(conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(context.Background(), s.ttl())
		defer cancel()
		return warnOfStrain(ctx, conn, s.source.cfg.Slot, s.log())
	})
}

// warnOfStrain says when a slot keeps more than the server means to keep.
func warnOfStrain(ctx context.Context, conn *pgx.Conn, slot string, log *slog.Logger) error {
	var status string
	var safe *int64
	err := conn.QueryRow(ctx, "SELECT coalesce(wal_status, ''), safe_wal_size FROM pg_replication_slots WHERE slot_name = $1", slot).Scan(&status, &safe)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // the stream will say so
	}
	if err == nil && (status == "unreserved" || status == "extended" && safe != nil) {
		left := int64(0)
		if safe != nil {
			left = *safe
		}
		log.Warn("the slot keeps much of the write-ahead log and may be invalidated: the destination is too slow, or stands still",
			"slot", slot, "wal_status", status, "bytes_left", left)
	}
	return err
}
