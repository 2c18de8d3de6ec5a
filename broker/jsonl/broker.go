package jsonl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/inorder"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Broker writes lines. It satisfies relay.Broker and relay.Pinger, and is safe for concurrent use.
type Broker struct {
	sink   sink
	encode *encoder

	// busy is held by the writer, capacity 1. No context interrupts a write: a call that can't wait leaves it to the
	// writing goroutine, which holds busy until the write is over.
	busy   chan struct{}
	closed bool // guarded by busy
}

// sink is where lines go. Its methods are called one at a time.
type sink interface {
	// write appends lines. It returns how many of their bytes are written for good; fewer than all only with an error.
	write(lines []byte) (int, error)
	ready() error
	close() error
}

// Config configures a broker that writes a file.
type Config struct {
	// Logger reports repaired lines and a replaced file. nil: slog.Default.
	Logger *slog.Logger
}

// New returns a broker that writes to w, in one Write per batch. A message is accepted when w has taken
// its line, so acceptance is as durable as w. Close does not close w.
//
// When w is standard output, a process whose reader goes away is killed by SIGPIPE unless it handles that
// signal (signal.Ignore(syscall.SIGPIPE)); then Publish reports the reader's absence.
func New(w io.Writer) *Broker { return newBroker(&stream{w: w}) }

// Open returns a broker that appends to the file at path, and creates it with permissions 0600. A message is accepted
// when its line is on disk. The file is locked: a second relay on it gets an error. A last line that a crash tore is
// removed; its message was never reported as accepted.
//
// If the file is renamed or removed, as by log rotation, the next Publish creates it again.
func Open(path string, cfg Config) (*Broker, error) {
	b := NewFile(path, cfg)
	if err := b.sink.ready(); err != nil {
		return nil, err
	}
	return b, nil
}

// NewFile is Open with the first use: what Open would report is an outage. So a relay that stands by keeps no other one
// from the file.
func NewFile(path string, cfg Config) *Broker {
	return newBroker(&file{path: path, logger: settings.Logger(cfg.Logger)})
}

func newBroker(s sink) *Broker {
	return &Broker{sink: s, encode: newEncoder(), busy: make(chan struct{}, 1)}
}

// Publish appends a line for every message, in the order of batch. All errors except ErrSkipped are unavailable: the
// lines can be written later.
func (b *Broker) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if len(batch) == 0 {
		return nil
	}
	if err := b.take(ctx); err != nil {
		return outcomes(batch, 0, err)
	}
	b.encode.reset()
	for _, m := range batch {
		if err := b.encode.add(m); err != nil {
			b.release()
			return outcomes(batch, 0, fmt.Errorf("jsonl: encode message %s: %w", m.ID, err))
		}
	}

	type result struct {
		accepted int
		err      error
	}
	done := make(chan result, 1)
	go func() {
		defer b.release()
		n, err := b.sink.write(b.encode.lines.Bytes())
		accepted := 0
		for accepted < len(b.encode.ends) && b.encode.ends[accepted] <= n {
			accepted++
		}
		done <- result{accepted, err}
	}()
	select {
	case r := <-done:
		if r.err == nil {
			return nil
		}
		return outcomes(batch, r.accepted, r.err)
	case <-ctx.Done():
		return outcomes(batch, 0, fmt.Errorf("jsonl: gave up on a write that is stuck (outcome unknown): %w", context.Cause(ctx)))
	}
}

// outcomes are those of a batch whose first messages were accepted; the rest failed with err.
func outcomes(batch []*outbox.Message, accepted int, err error) []error {
	var b inorder.Batch
	b.Begin(batch)
	for i := range accepted {
		b.Settle(int32(i), nil)
	}
	b.Stop(outbox.Unavailable(err))
	return b.Errs()
}

// Ping checks that lines can be written: that no write is stuck, and that the file exists.
func (b *Broker) Ping(ctx context.Context) error {
	if err := b.take(ctx); err != nil {
		return outbox.Unavailable(err)
	}
	defer b.release()
	return outbox.Unavailable(b.sink.ready())
}

// Close closes and unlocks the file. It may be called more than once.
func (b *Broker) Close() error {
	const patience = 5 * time.Second
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case b.busy <- struct{}{}:
	case <-timer.C:
		return errors.New("jsonl: close: a write is stuck")
	}
	defer b.release()
	if b.closed {
		return nil
	}
	b.closed = true
	return b.sink.close()
}

func (b *Broker) take(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("jsonl: nothing written: %w", context.Cause(ctx))
	}
	select {
	case b.busy <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("jsonl: an earlier write is stuck: %w", context.Cause(ctx))
	}
	if b.closed {
		b.release()
		return errors.New("jsonl: the broker is closed")
	}
	return nil
}

func (b *Broker) release() { <-b.busy }

// stream is a sink that can't undo its writes.
type stream struct {
	w    io.Writer
	torn bool // the last line is incomplete
}

func (s *stream) write(lines []byte) (int, error) {
	if s.torn {
		// This ends the torn line, so that it doesn't spoil the next one.
		if _, err := s.w.Write([]byte("\n")); err != nil {
			return 0, streamFault(err)
		}
		s.torn = false
	}
	n, err := s.w.Write(lines)
	if err == nil && n < len(lines) {
		err = io.ErrShortWrite
	}
	if err != nil {
		s.torn = n > 0 && lines[n-1] != '\n'
		return n, streamFault(err)
	}
	return n, nil
}

func streamFault(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("jsonl: write: the reader of the output is gone: %w", err)
	}
	return fmt.Errorf("jsonl: write: %w", err)
}

func (s *stream) ready() error { return nil }
func (s *stream) close() error { return nil }
