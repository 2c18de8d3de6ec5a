package main

import (
	"bufio"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/proof/bench/originals"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
)

// order says what a part is to do: the processes of a benchmark that are not "outbox relay".
type order struct {
	Part     string `json:"part"` // copy, poll, wal, group, original or load
	Database string `json:"database"`
	Broker   string `json:"broker,omitempty"`
	Address  string `json:"address,omitempty"`
	Topic    string `json:"topic,omitempty"`
	Fair     bool   `json:"fair,omitempty"` // of copy: with the columns, the order and the headers of a relay

	Original string    `json:"original,omitempty"` // of the package originals, and where it publishes
	Topics   [2]string `json:"topics,omitempty"`

	Slot string `json:"slot,omitempty"` // of a reader of the log; "" makes one

	Group  int `json:"group,omitempty"`
	Groups int `json:"groups,omitempty"`
	Batch  int `json:"batch,omitempty"`

	Load *paced `json:"load,omitempty"`
}

const (
	partCopy     = "copy"     // the floor of a drain
	partPoll     = "poll"     // the floor of a latency
	partWAL      = "wal"      // the floor of what reads the log
	partGroup    = "group"    // a relay for one shard group
	partOriginal = "original" // an article's algorithm
	partSpin     = "spin"     // what takes a core from the others
	partLoad     = "load"     // paced writers, with a relay beside them if there is a broker
)

// RunPart is the process of a part. It reads what to do from in, a line of JSON; a second line tells a
// load to begin. It says on log when it begins, and ends when ctx or in does: its parent is
// gone then.
func RunPart(ctx context.Context, in io.Reader, out, log io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := bufio.NewReader(in)
	text, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read what to do: %w", err)
	}
	var o order
	if err := json.Unmarshal(text, &o); err != nil {
		return fmt.Errorf("read what to do: %w", err)
	}
	begin := make(chan struct{})
	go func() { // it ends with the process, at the latest
		if _, err := lines.ReadBytes('\n'); err == nil {
			close(begin)
			_, _ = lines.ReadBytes('\n')
		}
		cancel()
	}()
	logger := slog.New(slog.NewJSONHandler(log, nil))
	started := func() { logger.Info("started") }

	switch o.Part {
	case partCopy:
		if err := runCopy(ctx, o, started); err != nil {
			return err
		}
		<-ctx.Done() // so that its memory can be read
		return nil
	case partPoll:
		return runPoll(ctx, o, started)
	case partWAL:
		return runWAL(ctx, o, started)
	case partGroup:
		return runGroup(ctx, o, nil, logger)
	case partOriginal:
		return originals.Run(ctx, originals.Config{Name: o.Original,
			Database: o.Database, Brokers: []string{o.Address}, Topics: o.Topics, Batch: o.Batch, Worker: o.Group}, started)
	case partSpin:
		for ctx.Err() == nil {
		}
		return nil
	case partLoad:
		return runLoad(ctx, o, begin, out, logger)
	}
	return fmt.Errorf("there is no part %q", o.Part)
}

// startPart starts a process that runs RunPart.
func startPart(o order) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := ownFolder(nil)
	if err != nil {
		return nil, err
	}
	p, err := startProcess(o.Part, dir, self, "part")
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(p.In).Encode(o); err != nil {
		p.stop()
		return nil, p.failure(fmt.Errorf("tell it what to do: %w", err))
	}
	return p, nil
}

// runGroup is a relay in this process, with default settings, for one shard group.
func runGroup(ctx context.Context, o order, wake <-chan struct{}, logger *slog.Logger) (err error) {
	conn, err := pgx.ParseConfig(o.Database)
	if err != nil {
		return err
	}
	source, err := polling.NewSnapshot(conn, destination,
		polling.SnapshotConfig{Group: o.Group, Groups: o.Groups, Wake: wake, Logger: logger})
	if err != nil {
		return err
	}
	broker, err := openBroker(o.Broker, o.Address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	r, err := relay.New(source, broker, relay.Config{Name: destination, Batch: o.Batch, Logger: logger})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

func openBroker(kind, address string) (relay.Broker, error) {
	if kind == "nats" {
		return nats.New(address, nats.Config{})
	}
	return kafka.New(kafka.Config{Brokers: []string{address}})
}

// destination is the name of the only one.
const destination = "bench"

// tell sends a result to the parent process.
func tell(out io.Writer, v any) error { return gob.NewEncoder(out).Encode(v) }

// hear waits for the result of a part.
func (p *process) hear(ctx context.Context, v any) error {
	heard := make(chan error, 1)
	go func() { heard <- p.out.Decode(v) }() // it ends with the process, at the latest
	select {
	case err := <-heard:
		if err != nil {
			<-p.Exited()
			return p.failure(errors.New("it ended without a result"))
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// goOn tells a load to begin.
func (p *process) goOn() error {
	if _, err := io.WriteString(p.In, "\n"); err != nil {
		return p.failure(fmt.Errorf("tell it to begin: %w", err))
	}
	return nil
}
