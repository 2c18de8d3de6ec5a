package rig

import (
	"context"
	"fmt"
	"time"
)

// Target is a topic of a real broker, to be delivered to and read back.
type Target interface {
	// YAML is the broker's part of a relay's configuration, when the broker is reached at an address. All messages go
	// to the target's topic, whatever theirs is.
	YAML(addr string) string
	// Create makes the topic, empty.
	Create(ctx context.Context) error
	// Delete removes it with what it holds.
	Delete(ctx context.Context) error
	// Forbid takes the right to write into the topic away, and Permit gives it back.
	Forbid(ctx context.Context) error
	Permit(ctx context.Context) error
	// Answers returns once the broker tells new clients where the topic ends: its process may run
	// long before that. It writes nothing.
	Answers(ctx context.Context) error
	// Grown is how far the topic has grown, in messages and records that end transactions.
	Grown(ctx context.Context) (int, error)
	// Read begins at the beginning of the topic.
	Read(ctx context.Context) (Reader, error)
}

// Reader reads a topic from its beginning, each part of it in order.
type Reader interface {
	// Next returns the next payloads, and nothing when none came for a while.
	Next(ctx context.Context) ([][]byte, error)
	// AtEnd reports whether everything has been returned that the topic had at the call.
	AtEnd(ctx context.Context) (bool, error)
	Close()
}

// MaxMessage is the largest message, in bytes, that topics made by a [Target] take.
const MaxMessage = 100_000

// askUntil calls ask, with little time for each call, until it succeeds.
func askUntil(ctx context.Context, ask func(context.Context) error) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		err := ask(attempt)
		cancel()
		if err == nil {
			return nil
		}
		if pauseErr := Pause(ctx, 10*time.Millisecond); pauseErr != nil {
			return fmt.Errorf("%w: %w", pauseErr, err)
		}
	}
}

// pollTime is how long Next waits for something.
const pollTime = 100 * time.Millisecond

// ReadAll passes everything that the topic has at the call to each.
func ReadAll(ctx context.Context, target Target, each func(payload []byte)) error {
	reader, err := target.Read(ctx)
	if err != nil {
		return err
	}
	defer reader.Close()
	return ReadOn(ctx, reader, each)
}

// ReadOn passes on what the topic has beyond what was read before.
func ReadOn(ctx context.Context, reader Reader, each func(payload []byte)) error {
	const often = 1000 // payloads until the end is asked for again
	for unasked := often; ; {
		if unasked >= often {
			if end, err := reader.AtEnd(ctx); err != nil || end {
				return err
			}
			unasked = 0
		}
		payloads, err := reader.Next(ctx)
		if err != nil {
			return fmt.Errorf("read the topic back: %w", err)
		}
		for _, p := range payloads {
			each(p)
		}
		if unasked += len(payloads); len(payloads) == 0 {
			unasked = often
		}
	}
}
