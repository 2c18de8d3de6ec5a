package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/wal"
)

// keep starts the goroutine that does the periodic work until the session is closed: it stores how far the log was read
// when nothing is in flight, tells the server what is stored, asks a silent server for its position, and watches the
// slot and the operator's wishes. It works while Next isn't called, too: a full pipeline must not look dead to the
// server.
func (s *session) keep() {
	s.helpers.Go(func() {
		ticker := time.NewTicker(min(s.ttl()/3, s.statusInterval, time.Second))
		defer ticker.Stop()
		watched := time.Now()
		for {
			select {
			case <-s.ctx.Done():
				return
			case <-s.table.Failed():
				if w := s.reading(); w != nil {
					w.Interrupt() // wakes Next
				}
				return
			case <-ticker.C:
			}
			watch := time.Since(watched) > wal.WatchEvery
			if watch {
				watched = time.Now()
			}
			if err := s.work(watch); err != nil && s.table.Failure() == nil && s.ctx.Err() == nil {
				s.log().Debug("looking after the slot failed", "error", err)
			}
		}
	})
}

// reading is the stream, nil while the table is read.
func (s *session) reading() *wal.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wal
}

func (s *session) work(watch bool) error {
	s.mu.Lock()
	w := s.wal
	var due, silent bool
	if w != nil {
		due = s.progress.Mark != s.stored
		silent = w.Silent() > s.source.cfg.Heartbeat
	}
	s.mu.Unlock()
	// This doesn't use the session's context: Close would interrupt a write and lose the connection with it.
	ctx := context.Background()
	if w == nil {
		return s.readMode(false)
	}
	if due {
		if err := s.store(ctx, nil); err != nil {
			return err
		}
	} else if err := s.readMode(true); err != nil {
		return err
	}
	if err := s.confirm(w, false); err != nil {
		return err
	}
	if silent {
		if err := w.Ask(); err != nil {
			return err
		}
	}
	if watch {
		return s.watch()
	}
	return nil
}

// confirm tells the server what is stored, if the server doesn't know it or has had no status for long. It never
// reports more than the database has, so a slot beyond the stored position was moved by somebody else.
func (s *session) confirm(w *wal.Stream, last bool) error {
	s.mu.Lock()
	position := s.stored.Position
	s.mu.Unlock()
	return w.Confirm(position, last)
}

// readMode reads what the operator wants. If the log is read, it ends the session when the publication has changed. The
// next settlement would do so too, but perhaps none comes, because nothing is sent any more, or comes too late.
func (s *session) readMode(streaming bool) error {
	var wanted mode
	var standbys, same bool
	var end, snapshot string
	var last int64
	err := s.table.Read(func(conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(context.Background(), s.ttl())
		defer cancel()
		err := conn.QueryRow(ctx, "SELECT mode, "+standbysSQL+", coalesce(publication_version = ("+versionSQL+"publication), false), "+
			"pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, "+cursors.LastSQL+" FROM outbox.slots WHERE destination = $1",
			s.source.destination).Scan(&wanted, &standbys, &same, &snapshot, &end, &last)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return relay.ErrLeaseLost // the destination was dropped
		case err == nil && streaming && !same:
			return fmt.Errorf("%w: %q", errPublicationChanged, s.source.cfg.Publication)
		case err == nil:
			return s.drawing.Check(last, s.source.destination)
		}
		return err
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode, s.standbys = wanted, standbys
	if s.end, err = wal.ParseLSN(end); err == nil && streaming && s.streaming {
		s.fallback.note(snapshot, s.end)
	}
	return err
}

// watch warns of a slot that will soon be invalidated.
func (s *session) watch() error {
	return s.table.Read(func(conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(context.Background(), s.ttl())
		defer cancel()
		return wal.WarnOfStrain(ctx, conn, s.source.cfg.Slot, s.log())
	})
}
