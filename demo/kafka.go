//go:build kafka

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/testnet"
	"github.com/pgoutbox/outbox/relay"
)

const kafkaPartitions = 6

// givenKafka is an existing Kafka, in which the demo has a topic of its own. The relays go through proxies, so that
// only they lose the brokers in an outage.
type givenKafka struct {
	given   string
	version string
	name    string // of the topic
	client  *kgo.Client
	admin   *kadm.Client
	proxies []*testnet.Proxy
	relays  target

	mu   sync.Mutex
	next map[int32]int64 // by partition: the offset that the consumer expects next
}

var _ broker = (*givenKafka)(nil)

// openKafka checks that a Kafka answers at that address, and creates the topic; undo deletes it.
func openKafka(ctx context.Context, undo *undo, given string) (broker, error) {
	k := &givenKafka{given: given, name: "outbox-demo-" + randomHex(), next: map[int32]int64{}}
	var err error
	k.client, err = kgo.NewClient(
		kgo.SeedBrokers(strings.Split(given, ",")...), kgo.ClientID("outbox demo"),
		kgo.ConsumeTopics(k.name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(100*time.Millisecond), kgo.MetadataMinAge(250*time.Millisecond), kgo.UnknownTopicRetries(-1))
	if err != nil {
		return nil, fmt.Errorf("--kafka %s: %w", given, err)
	}
	undo.add(func(context.Context) error { k.client.Close(); return nil })
	k.admin = kadm.NewClient(k.client)
	if err := k.prepare(ctx, undo); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *givenKafka) prepare(ctx context.Context, undo *undo) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := k.client.Ping(ctx); err != nil {
		return fmt.Errorf("no Kafka answers at %s (--kafka): %w; is it host:port of a plaintext listener?", k.given, err)
	}
	versions, err := k.admin.ApiVersions(ctx)
	if err != nil {
		return fmt.Errorf("ask the Kafka at %s for its version: %w", k.given, err)
	}
	for _, v := range versions.Sorted() {
		k.version = strings.TrimPrefix(v.VersionGuess(), "v")
		break
	}
	// The limit gives the broker something to refuse.
	limit := strconv.Itoa(maxMessage)
	created, err := k.admin.CreateTopic(ctx, kafkaPartitions, -1, map[string]*string{"max.message.bytes": &limit}, k.name)
	if err = errors.Join(err, created.Err); err != nil {
		return fmt.Errorf("create the demo's topic in the Kafka at %s: %w", k.given, err)
	}
	undo.add(func(ctx context.Context) error {
		deleted, err := k.admin.DeleteTopic(ctx, k.name)
		return wrap("delete the demo's topic "+k.name, errors.Join(err, deleted.Err))
	})
	return k.startProxies(ctx, undo)
}

// startProxies starts a proxy for each broker, for the given addresses and for those that the brokers give to clients.
func (k *givenKafka) startProxies(ctx context.Context, undo *undo) error {
	brokers, err := k.admin.ListBrokers(ctx)
	if err != nil {
		return fmt.Errorf("ask the Kafka at %s for its brokers: %w", k.given, err)
	}
	k.relays = target{Kafka: strings.Split(k.given, ","), Proxies: map[string]string{}}
	for i, seed := range k.relays.Kafka {
		if _, _, err := net.SplitHostPort(seed); err != nil {
			k.relays.Kafka[i] = net.JoinHostPort(seed, "9092") // Kafka's usual port
		}
	}
	addresses := slices.Clone(k.relays.Kafka)
	for _, b := range brokers {
		addresses = append(addresses, net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
	}
	slices.Sort(addresses)
	for _, address := range slices.Compact(addresses) {
		proxy, err := testnet.StartProxy()
		if err != nil {
			return err
		}
		undo.add(func(context.Context) error { proxy.Close(); return nil })
		proxy.Forward(address)
		k.proxies = append(k.proxies, proxy)
		k.relays.Proxies[address] = proxy.Addr()
	}
	return nil
}

func (k *givenKafka) place() place {
	return place{"Kafka " + k.version, k.given + ", topic " + k.name, k.name, k.relays}
}

func (k *givenKafka) takeDown() error               { k.refuse(true); return nil }
func (k *givenKafka) bringUp(context.Context) error { k.refuse(false); return nil }

func (k *givenKafka) refuse(refuse bool) {
	for _, proxy := range k.proxies {
		proxy.Refuse(refuse)
	}
}

func (k *givenKafka) consume(ctx context.Context, received func(payload []byte)) error {
	for {
		fetches := k.client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err0(); err != nil {
			return err // the client is closed
		}
		// The client itself logs and survives errors of partitions.
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

// kafkaRelay makes a relay's broker, whose connections go through the proxies.
func kafkaRelay(t target) (relay.Broker, error) {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return kafka.New(kafka.Config{Brokers: t.Kafka, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if proxy, found := t.Proxies[address]; found {
			address = proxy
		}
		return dialer.DialContext(ctx, network, address)
	}})
}
