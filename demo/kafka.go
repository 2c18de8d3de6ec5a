package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const kafkaPartitions = 6

// givenKafka is somebody's Kafka. The demo has a topic of its own in it. The relays go through a proxy, so that the broker
// can be away for them alone.
type givenKafka struct {
	given   string
	version string
	name    string // of the topic
	client  *kgo.Client
	admin   *kadm.Client
	proxy   *kafkaProxy

	mu   sync.Mutex
	next map[int32]int64 // by partition, the offset that the consumer expects
}

var _ broker = (*givenKafka)(nil)

// openKafka looks whether a Kafka answers there, and creates the topic.
func openKafka(ctx context.Context, given string) (*givenKafka, error) {
	k := &givenKafka{given: given, name: "outbox-demo-" + randomHex(), next: make(map[int32]int64)}
	seeds := strings.Split(given, ",")
	var err error
	k.client, err = kgo.NewClient(
		kgo.SeedBrokers(seeds...), kgo.ClientID("outbox demo"),
		kgo.ConsumeTopics(k.name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(100*time.Millisecond), kgo.MetadataMinAge(250*time.Millisecond), kgo.UnknownTopicRetries(-1))
	if err != nil {
		return nil, fmt.Errorf("--kafka %s: %w", given, err)
	}
	k.admin = kadm.NewClient(k.client)
	if err := k.prepare(ctx, seeds); err != nil {
		return nil, errors.Join(err, k.close())
	}
	return k, nil
}

func (k *givenKafka) prepare(ctx context.Context, seeds []string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := reachable(ctx, seeds); err != nil {
		return fmt.Errorf("nobody answers at %s (--kafka): %w", k.given, err)
	}
	versions, err := k.admin.ApiVersions(ctx)
	if err != nil {
		return fmt.Errorf("no Kafka answers at %s (--kafka): %w; is it host:port of a plaintext listener?", k.given, err)
	}
	for _, v := range versions.Sorted() {
		k.version = strings.TrimPrefix(v.VersionGuess(), "v")
		break
	}
	// A topic that takes no more than that, so that there is something to refuse.
	limit := fmt.Sprint(maxMessage)
	created, err := k.admin.CreateTopic(ctx, kafkaPartitions, -1, map[string]*string{"max.message.bytes": &limit}, k.name)
	if err = errors.Join(err, created.Err); err != nil {
		k.name = ""
		return fmt.Errorf("create the demo's topic in the Kafka at %s: %w", k.given, err)
	}
	k.proxy, err = startKafkaProxy(seeds)
	return err
}

// reachable tells whether somebody listens at one of the addresses. The client would try for long, and not say why.
func reachable(ctx context.Context, seeds []string) error {
	var errs []error
	for _, seed := range seeds {
		conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", withPort(seed))
		if err == nil {
			return conn.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// withPort adds Kafka's usual port where there is none.
func withPort(seed string) string {
	if _, _, err := net.SplitHostPort(seed); err != nil {
		return net.JoinHostPort(seed, "9092")
	}
	return seed
}

func (k *givenKafka) describe() string { return "Kafka " + k.version }
func (k *givenKafka) address() string  { return k.given + ", topic " + k.name }
func (k *givenKafka) topic() string    { return k.name }

func (k *givenKafka) target() target { return target{Kafka: k.proxy.seeds()} }

func (k *givenKafka) takeDown() error               { return k.proxy.takeDown() }
func (k *givenKafka) bringUp(context.Context) error { return k.proxy.bringUp() }

func (k *givenKafka) consume(ctx context.Context, received func(payload []byte)) error {
	for {
		fetches := k.client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err0(); err != nil {
			return err // the client is closed
		}
		// Errors of partitions are told and got over by the client itself.
		fetches.EachRecord(func(record *kgo.Record) {
			received(record.Value)
			k.mu.Lock()
			k.next[record.Partition] = record.Offset + 1
			k.mu.Unlock()
		})
	}
}

func (k *givenKafka) caughtUp(ctx context.Context) (bool, error) {
	ends, err := k.admin.ListEndOffsets(ctx, k.name)
	if err = errors.Join(err, ends.Error()); err != nil {
		return false, fmt.Errorf("ask Kafka for its last messages: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	up := true
	ends.Each(func(end kadm.ListedOffset) { up = up && k.next[end.Partition] >= end.Offset })
	return up, nil
}

func (k *givenKafka) close() error {
	defer k.client.Close()
	var errs []error
	if k.proxy != nil {
		errs = append(errs, k.proxy.close())
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		deleted, err := k.admin.DeleteTopic(ctx, k.name)
		if err = errors.Join(err, deleted.Err); err != nil {
			errs = append(errs, fmt.Errorf("delete the demo's topic %s: %w", k.name, err))
		}
	}
	return errors.Join(errs...)
}
