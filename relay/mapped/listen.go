package mapped

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/link"
	"github.com/pgoutbox/outbox/schema"
)

const (
	// listenAgain is the pause before a connection that has ended is opened again.
	listenAgain = time.Second

	// silentFor is how long no notification comes before the server is asked whether the connection still works. A
	// connection that is half open would hear nothing for ever.
	silentFor = 30 * time.Second
)

// listener ends a session's pauses when a transaction has notified Config.Notify. It has a connection of its own,
// because the others are busy with polls and marks, and those of skiplocked change. Nothing is
// lost without it: the next poll reads what was not heard.
type listener struct {
	heard relay.Waker // nil: the table has no channel
	stop  context.CancelFunc
	ended sync.WaitGroup
}

// listen begins to listen, until close.
func (s *Source) listen() *listener {
	if s.cfg.Notify == "" {
		return &listener{stop: func() {}}
	}
	ctx, stop := context.WithCancel(context.Background())
	l := &listener{heard: relay.NewWaker(), stop: stop}
	l.ended.Go(func() { s.hear(ctx, l.heard) })
	return l
}

func (l *listener) close() {
	l.stop()
	l.ended.Wait()
}

// hear listens until ctx ends, or it turns out that no notification can come. It logs each interruption once.
func (s *Source) hear(ctx context.Context, heard relay.Waker) {
	logger := s.cfg.Logger.With("relay", s.owner, "table", s.mapping.Table, "channel", s.cfg.Notify)
	for logged := false; ; {
		err := s.hearOnce(ctx, heard, func() { logged = false })
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrTransactionPooler):
			logger.Warn("no notification comes through a pooler in transaction mode, so rows wait for the next poll: give the relay "+
				"the address of PostgreSQL itself, or of a pool in session mode", "pause", s.cfg.PollIdle)
			return
		case !logged:
			logger.Warn("notifications are interrupted, so rows wait for the next poll", "error", err, "pause", s.cfg.PollIdle)
			logged = true
		}
		if dial.Pause(ctx, listenAgain) != nil {
			return
		}
	}
}

// hearOnce listens on a new connection until it ends.
func (s *Source) hearOnce(ctx context.Context, heard relay.Waker, began func()) error {
	opening, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	conn, err := dial.Session(opening, s.conn, "outbox relay "+s.owner)
	if err != nil {
		return err
	}
	defer dial.HangUp(conn)
	if _, err := conn.Exec(opening, "LISTEN "+schema.QuoteIdentifier(s.cfg.Notify)); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	began()
	heard.Wake() // of what was committed before, no notification comes
	for {
		waiting, cancel := context.WithTimeout(ctx, silentFor)
		_, err := conn.WaitForNotification(waiting)
		cancel()
		switch {
		case err == nil:
			heard.Wake()
			continue
		case ctx.Err() != nil || conn.IsClosed() || !pgconn.Timeout(err):
			return err
		}
		asking, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
		err = link.Ping(asking, conn)
		cancel()
		if err != nil {
			return err
		}
	}
}
