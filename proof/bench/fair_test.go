package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/proof/rig"
)

// The fair floor is one as long as it sends the same as the relay, header for header.
func TestTheFairFloorSendsWhatTheRelaySends(t *testing.T) {
	t.Parallel()
	for broker, read := range map[string]func(context.Context, *bed, int) ([]string, error){"kafka": kafkaRecords, "nats": natsMessages} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(await.Context(t))
			defer cancel()
			const messages = 200
			cfg, b := config(t, "drain", broker), openedBed(t, broker)
			cfg.Bytes, cfg.Keys, cfg.Relays, cfg.Headers = 100, 7, 1, 3
			sent := map[string][]string{}
			for _, name := range []string{Fair, Relay} {
				r := newRun(&cfg, b, name)
				_, err := r.backlog(ctx, messages, false)
				if err == nil {
					err = r.to.fresh(ctx)
				}
				if err == nil {
					r.team, err = r.launch()
				}
				for arrived := 0; err == nil && arrived < messages; {
					if arrived, err = r.to.count(ctx); err == nil {
						err = rig.Pause(ctx, 10*time.Millisecond)
					}
				}
				r.team.stop()
				if err == nil {
					sent[name], err = read(ctx, b, messages)
				}
				if err != nil {
					t.Fatal(name, err)
				}
			}
			if fair, relay := sent[Fair], sent[Relay]; !slices.Equal(fair, relay) || len(slices.Compact(fair)) != messages ||
				!strings.Contains(fair[0], "traceparent") {
				t.Errorf("%d messages, the first of the floor and of the relay:\n%s\n%s", len(fair), fair[0], relay[0])
			}
		})
	}
}

// kafkaRecords are the topic's, each as a text, sorted. Headers have no order to a reader.
func kafkaRecords(ctx context.Context, b *bed, n int) (texts []string, err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.to.address), kgo.ConsumeTopics(b.topics[0]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	for len(texts) < n && err == nil {
		fetches := client.PollFetches(ctx)
		err = fetches.Err()
		fetches.EachRecord(func(r *kgo.Record) {
			headers := map[string]string{}
			for _, h := range r.Headers {
				headers[h.Key] = string(h.Value)
			}
			texts = append(texts, fmt.Sprintf("%s %q %q %q", r.Topic, r.Key, headers, r.Value))
		})
	}
	slices.Sort(texts)
	return texts, err
}

func natsMessages(ctx context.Context, b *bed, n int) (texts []string, err error) {
	conn, err := nats.Connect(b.to.address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	stream, err := js.StreamNameBySubject(ctx, b.topics[0])
	if err != nil {
		return nil, err
	}
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	for len(texts) < n && err == nil {
		var m jetstream.Msg
		if m, err = consumer.Next(); err != nil {
			break
		}
		texts = append(texts, fmt.Sprintf("%s %q %q", m.Subject(), m.Headers(), m.Data()))
	}
	slices.Sort(texts)
	return texts, err
}
