package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// topics are those of a workload, with JSON in them.
type topics struct {
	*kafkaTarget
	names      []string
	partitions int32 // of each
}

func newTopics(of *kafkaTarget, w Workload) *topics {
	t := &topics{kafkaTarget: of, partitions: int32(w.partitions)}
	for i := range w.topics {
		t.names = append(t.names, fmt.Sprintf("%s-%d", of.topic, i))
	}
	return t
}

func (t *topics) fresh(ctx context.Context) error {
	responses, err := t.admin.DeleteTopics(ctx, t.names...)
	if err != nil {
		return err
	}
	for _, r := range responses {
		if r.Err != nil && !errors.Is(r.Err, kerr.UnknownTopicOrPartition) {
			return r.Err
		}
	}
	for _, name := range t.names {
		for {
			_, err := t.admin.CreateTopic(ctx, t.partitions, 1, nil, name)
			if err == nil {
				break
			}
			if !errors.Is(err, kerr.TopicAlreadyExists) {
				return fmt.Errorf("create the topic: %w", err)
			}
			if err := pause(ctx, 100*time.Millisecond); err != nil { // deletion takes a moment
				return err
			}
		}
	}
	for {
		if n, err := t.count(ctx); err == nil && n == 0 {
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// count is how far the topics have grown: transactions leave records of their own there.
func (t *topics) count(ctx context.Context) (int, error) {
	ends, err := t.admin.ListEndOffsets(ctx, t.names...)
	if err != nil {
		return 0, err
	}
	n := 0
	ends.Each(func(o kadm.ListedOffset) { n += int(max(o.Offset, 0)) })
	return n, ends.Error()
}

func (t *topics) consume(ctx context.Context, visit func([]byte) bool) error {
	return t.records(ctx, func(r *kgo.Record) bool { return r.Attrs.IsControl() || visit(decodeJSON(r.Value)) })
}

// readAll shows what stands in the topics now.
func (t *topics) readAll(ctx context.Context, visit func([]byte)) error {
	left, err := t.count(ctx)
	if err != nil || left == 0 {
		return err
	}
	return t.records(ctx, func(r *kgo.Record) bool {
		left--
		if !r.Attrs.IsControl() {
			visit(decodeJSON(r.Value))
		}
		return left > 0
	})
}

func (t *topics) records(ctx context.Context, visit func(*kgo.Record) bool) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(t.addr), kgo.ConsumeTopics(t.names...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx)
		if err := errors.Join(ctx.Err(), fetches.Err()); err != nil {
			return err
		}
		for r := range fetches.RecordsAll() {
			if !visit(r) {
				return nil
			}
		}
	}
}

// leave removes the topics from a broker that stays.
func (t *topics) leave() {
	if t.server == nil {
		ctx, cancel := context.WithTimeout(context.Background(), hangUp)
		defer cancel()
		_, _ = t.admin.DeleteTopics(ctx, t.names...) // best effort
	}
}
