package rig

import (
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
	URL   string // of the server itself
	Topic string

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
	return jetstream.StreamConfig{Name: t.stream(), Subjects: []string{t.Topic}, Duplicates: window, MaxMsgSize: MaxMessage}
}

// With runs do with a connection of its own.
func (t NATSTopic) With(ctx context.Context, do func(jetstream.JetStream) error) error {
	nc, err := nats.Connect(t.URL)
	if err != nil {
		return err
	}
	defer nc.Close()
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
	if err == nil {
		r.consumer, err = r.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true})
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
	consumer jetstream.Consumer
	last     uint64
}

func (r *natsReader) Next(ctx context.Context) ([][]byte, error) {
	batch, err := r.consumer.Fetch(2000, jetstream.FetchMaxWait(pollTime))
	if err != nil {
		return nil, err
	}
	var payloads [][]byte
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		if seq := meta.Sequence.Stream; seq != r.last+1 {
			return nil, fmt.Errorf("message %d of the stream came after message %d", seq, r.last)
		}
		r.last++
		payloads = append(payloads, m.Data())
	}
	if err := batch.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) {
		return nil, err
	}
	return payloads, ctx.Err()
}

func (r *natsReader) AtEnd(ctx context.Context) (bool, error) {
	info, err := r.stream.Info(ctx)
	if err != nil {
		return false, err
	}
	return info.State.LastSeq == r.last, nil
}

func (r *natsReader) Close() { r.nc.Close() }
