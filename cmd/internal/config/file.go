package config

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/jsonl"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
)

// Stdout has no settings.
type Stdout struct{}

// File configures a file of JSON lines.
type File struct {
	Path string `json:"path" jsonschema:"The file; it is created if it is missing. Required."`
}

func (*Stdout) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	faults.Add("Format", o.lines())
	return made(jsonl.New(o.Stdout), nil, &faults)
}

func (f *File) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	faults.Add("Format", o.lines())
	faults.Need(f.Path != "", "Path", "not given; name the file")
	return made(&lazyFile{path: f.Path, logger: o.Logger}, nil, &faults)
}

// lines is the fault of a format where there are lines.
func (o Opening) lines() error {
	if o.format == nil {
		return nil
	}
	return errors.New("lines of stdout and file have a format of their own; leave it out")
}

// lazyFile opens its file when the first message comes, so that a standby does not keep the owner from
// it, and a file that can't be opened now is an outage of its destination alone.
type lazyFile struct {
	path   string
	logger *slog.Logger

	mu     sync.Mutex
	file   *jsonl.Broker
	closed bool
}

var (
	_ relay.Broker = (*lazyFile)(nil)
	_ relay.Pinger = (*lazyFile)(nil)
)

func (l *lazyFile) open() (*jsonl.Broker, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, outbox.Unavailable(os.ErrClosed)
	}
	if l.file == nil {
		file, err := jsonl.Open(l.path, jsonl.Config{Logger: l.logger})
		if err != nil {
			return nil, outbox.Unavailable(err)
		}
		l.file = file
	}
	return l.file, nil
}

func (l *lazyFile) Publish(ctx context.Context, batch []*outbox.Message) []error {
	file, err := l.open()
	if err != nil {
		return slices.Repeat([]error{err}, len(batch))
	}
	return file.Publish(ctx, batch)
}

func (l *lazyFile) Ping(ctx context.Context) error {
	file, err := l.open()
	if err != nil {
		return err
	}
	return file.Ping(ctx)
}

func (l *lazyFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
