package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
)

// Worker applies the messages of a stored inbox. It is a relay whose destination is the handler. So retries with
// backoff, holds, dead letters and their policies, leases between instances and retention are those of the relay, and
// the operator's verbs apply to them. Messages of one key are applied in order, and a key that fails holds up no other.
type Worker struct {
	relay  *relay.Relay
	beside []func(context.Context) error
}

// WorkerConfig tunes a [Worker]. The zero value means the stated defaults.
type WorkerConfig struct {
	// Relay configures the relay: attempts, backoff, policy, logger, observer. The worker sets Name and Select.
	// Defaults as there, except that Batch is 200 and MaxInFlight 2000.
	Relay relay.Config

	// Parallel is how many handlers run at once in each of Relay.Stripes calls, on different keys. The
	// pool needs that many connections, times Stripes. Default 2.
	Parallel int

	// Beside are functions that run while the worker runs, for maintenance of its database:
	//
	//	Beside: []func(context.Context) error{records.Run, segments.Run} // an inbox.Retention, a retention.Retention
	//
	// Their context ends when the worker's does, and Run waits for them. Run returns their errors.
	Beside []func(ctx context.Context) error
}

// NewWorker returns a worker for the stored inbox of b; call Run. source reads b.Destination:
//
//	source, err := polling.NewSnapshot(conn, b.Destination(), polling.SnapshotConfig{})
//
// A source doesn't tell its destination. With another one the worker finds no message of b and applies nothing, without
// an error, and the other destination gets a cursor.
//
// fn runs as with Handle, on db. Its errors count as attempts, except those marked by outbox.Unavailable, which stall
// the worker; messages with errors marked by outbox.Permanent aren't tried again.
//
// A retention.Retention and a Retention must run on the database: in this worker (WorkerConfig.Beside), in any number
// of processes, or in another service.
func NewWorker(b *Inbox, source relay.Source, db DB, fn Handler, cfg WorkerConfig) (*Worker, error) {
	if b == nil || !settings.Given(db) || fn == nil {
		return nil, errors.New("inbox: NewWorker needs an inbox, a database and a handler")
	}
	if cfg.Parallel < 0 {
		return nil, fmt.Errorf("inbox: Parallel is %d, it must be positive", cfg.Parallel)
	}
	if cfg.Parallel == 0 {
		cfg.Parallel = 2
	}
	if b.cfg.Gaps == GapWait && !b.cfg.Unordered {
		return nil, errors.New("inbox: with GapWait a stored message that is early would wait for one that is stored behind it: " +
			"set Config.Unordered, and the sequence numbers make the order, or use GapReport")
	}
	cfg.Relay.Name = b.Destination()
	cfg.Relay.Select = func(m *outbox.Message) bool {
		consumer, _ := m.Header(consumerHeader)
		return consumer == b.consumer
	}
	if cfg.Relay.Batch == 0 {
		cfg.Relay.Batch = 200
	}
	if cfg.Relay.MaxInFlight == 0 {
		cfg.Relay.MaxInFlight = max(2000, 2*cfg.Relay.Batch)
	}
	r, err := relay.New(source, &handlers{b, db, fn, cfg.Parallel}, cfg.Relay)
	if err != nil {
		return nil, err
	}
	return &Worker{r, cfg.Beside}, nil
}

// Run applies messages until ctx ends. Then it waits for running handlers (at most Relay.DrainTimeout) and returns nil.
// A handler that hangs when Relay.Grace has passed too is left behind: see relay.ErrHung.
// It returns earlier, with an error, only for what waiting can't cure, and with the policy relay.Stop.
func (w *Worker) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, len(w.beside)+1)
	var beside sync.WaitGroup
	for i, run := range w.beside {
		beside.Go(func() { errs[i+1] = run(ctx) })
	}
	errs[0] = w.relay.Run(ctx)
	stop()
	beside.Wait()
	return errors.Join(errs...)
}

// handlers is the broker of a worker: a message that it accepts is applied.
type handlers struct {
	inbox    *Inbox
	db       DB
	fn       Handler
	parallel int
}

var _ relay.Broker = (*handlers)(nil)

// Publish applies a batch: the messages of each key one after the other, several keys at once. The engine repeats
// messages that it could not note as done, and Handle recognises them.
func (h *handlers) Publish(ctx context.Context, batch []*outbox.Message) []error {
	lanes := lanesOf(batch)
	errs := make([]error, len(batch))
	next := make(chan []int)
	var workers sync.WaitGroup
	for range min(h.parallel, len(lanes)) {
		workers.Go(func() {
			for lane := range next {
				h.lane(ctx, batch, lane, errs)
			}
		})
	}
	for _, lane := range lanes {
		next <- lane
	}
	close(next)
	workers.Wait()
	return errs
}

// lane applies messages in order, up to the first that fails.
func (h *handlers) lane(ctx context.Context, batch []*outbox.Message, lane []int, errs []error) {
	for n, i := range lane {
		msg := restored(batch[i])
		if ctx.Err() != nil {
			errs[i] = outbox.Unavailable(ctx.Err())
		} else if _, err := h.inbox.Handle(ctx, h.db, &msg, h.fn); err != nil {
			errs[i] = err
			if ctx.Err() != nil {
				errs[i] = outbox.Unavailable(err) // the worker is being stopped: not the message's fault
			}
		}
		if errs[i] != nil {
			for _, behind := range lane[n+1:] {
				errs[behind] = outbox.ErrSkipped
			}
			return
		}
	}
}

// lanesOf returns the indexes of the messages of each key, in order. Those without a key have no order.
func lanesOf(batch []*outbox.Message) (lanes [][]int) {
	known := make(map[string]int, len(batch))
	for i, m := range batch {
		key := m.OrderingKey()
		at, ok := known[key]
		if !ok || key == "" {
			at = len(lanes)
			known[key] = at
			lanes = append(lanes, nil)
		}
		lanes[at] = append(lanes[at], i)
	}
	return lanes
}

// Close does nothing, because the caller owns the database.
func (h *handlers) Close() error { return nil }
