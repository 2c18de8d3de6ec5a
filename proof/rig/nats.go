package rig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// NATSTopic is a stream with one subject.
type NATSTopic struct {
	URL     string // of the server itself
	Topic   string
	Largest int // message, in bytes. Default: MaxMessage

	// Conn, if set, is what all calls but Read use. Otherwise each has one of its own.
	Conn *nats.Conn

	// Window is how long the stream recognises repeats. Default 100 ms, too short to help: what is tested then is
	// the relay. Recall is how many of the last messages the relay recognises by itself.
	Window time.Duration
	Recall int
}

var _ Target = NATSTopic{}

func (t NATSTopic) YAML(addr string) string {
	if t.Recall > 0 {
		return fmt.Sprintf("{nats: {url: %q, subject: %q, stream: %s, recall: %d}}", "nats://"+addr, t.Topic, t.stream(), t.Recall)
	}
	return fmt.Sprintf("{nats: {url: %q, subject: %q}}", "nats://"+addr, t.Topic)
}

func (t NATSTopic) stream() string { return strings.ToUpper(t.Topic) }

// Config is that of the stream.
func (t NATSTopic) Config() jetstream.StreamConfig {
	window := max(t.Window, 100*time.Millisecond)
	return jetstream.StreamConfig{Name: t.stream(), Subjects: []string{t.Topic}, Duplicates: window,
		MaxMsgSize: int32(cmp.Or(t.Largest, MaxMessage))}
}

// With runs do with a connection of its own.
func (t NATSTopic) With(ctx context.Context, do func(jetstream.JetStream) error) error {
	nc := t.Conn
	if nc == nil {
		var err error
		if nc, err = nats.Connect(t.URL); err != nil {
			return err
		}
		defer nc.Close()
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	return do(js)
}

func (t NATSTopic) Create(ctx context.Context) error {
	return t.With(ctx, func(js jetstream.JetStream) error {
		_, err := js.CreateStream(ctx, t.Config())
		return err
	})
}

func (t NATSTopic) Delete(ctx context.Context) error {
	return t.With(ctx, func(js jetstream.JetStream) error {
		err := js.DeleteStream(ctx, t.stream())
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		return err
	})
}

// Forbid takes the subject from the stream, which keeps what it has.
func (t NATSTopic) Forbid(ctx context.Context) error { return t.listen(ctx, t.Topic+".elsewhere") }

func (t NATSTopic) Permit(ctx context.Context) error { return t.listen(ctx, t.Topic) }

// listen has the stream take another subject instead of its own.
func (t NATSTopic) listen(ctx context.Context, subject string) error {
	return t.With(ctx, func(js jetstream.JetStream) error {
		config := t.Config()
		config.Subjects = []string{subject}
		_, err := js.UpdateStream(ctx, config)
		return err
	})
}

func (t NATSTopic) Answers(ctx context.Context) error {
	return askUntil(ctx, func(ctx context.Context) error {
		return t.With(ctx, func(js jetstream.JetStream) error {
			_, err := js.Stream(ctx, t.stream())
			return err
		})
	})
}

func (t NATSTopic) Grown(ctx context.Context) (n int, err error) {
	err = t.With(ctx, func(js jetstream.JetStream) error {
		stream, err := js.Stream(ctx, t.stream())
		if err == nil {
			n = int(stream.CachedInfo().State.Msgs)
		}
		return err
	})
	return n, err
}

func (t NATSTopic) Read(ctx context.Context) (Reader, error) {
	nc, err := nats.Connect(t.URL)
	if err != nil {
		return nil, err
	}
	r := &natsReader{nc: nc}
	js, err := jetstream.New(nc)
	if err == nil {
		r.stream, err = js.Stream(ctx, t.stream())
	}
	var consumer jetstream.Consumer
	if err == nil {
		consumer, err = r.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true})
	}
	if err == nil {
		// A machine that is busy for long is no error.
		r.messages, err = consumer.Messages(jetstream.PullMaxMessages(5000), jetstream.WithMessagesErrOnMissingHeartbeat(false))
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("read stream %s: %w", t.stream(), err)
	}
	return r, nil
}

type natsReader struct {
	nc       *nats.Conn
	stream   jetstream.Stream
	messages jetstream.MessagesContext
	last     uint64
}

func (r *natsReader) Next(ctx context.Context) ([][]byte, error) {
	m, err := r.messages.Next(jetstream.NextMaxWait(pollTime))
	if errors.Is(err, nats.ErrTimeout) {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	meta, err := m.Metadata()
	if err != nil {
		return nil, err
	}
	if seq := meta.Sequence.Stream; seq != r.last+1 {
		return nil, fmt.Errorf("message %d of the stream came after message %d", seq, r.last)
	}
	r.last++
	return [][]byte{m.Data()}, ctx.Err()
}

func (r *natsReader) AtEnd(ctx context.Context) (bool, error) {
	info, err := r.stream.Info(ctx)
	if err != nil {
		return false, err
	}
	return info.State.LastSeq == r.last, nil
}

func (r *natsReader) Close() {
	r.messages.Stop()
	r.nc.Close()
}
