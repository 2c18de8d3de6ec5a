package rig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// KafkaTopic is a topic with as many replicas as the cluster's default says.
type KafkaTopic struct {
	Addr       string // of the broker itself; several with commas
	Topic      string
	Partitions int // default: 3
	Largest    int // message, in bytes. Default: MaxMessage

	// Client, if set, is what all calls but Read use. Otherwise each has one of its own.
	Client *kgo.Client

	// ExactlyOnce delivers in transactions, and reads what was committed.
	ExactlyOnce bool
	// Committed reads what was committed, whichever relay delivers.
	Committed bool
}

var _ Target = KafkaTopic{}

func (t KafkaTopic) partitions() int { return cmp.Or(t.Partitions, 3) }

func (t KafkaTopic) YAML(addr string) string {
	brokers := `"` + strings.ReplaceAll(addr, ",", `", "`) + `"`
	if t.ExactlyOnce {
		return fmt.Sprintf("{kafka: {brokers: [%s], topic: %q, exactly_once: true, cursor_topic: %q}}", brokers, t.Topic, t.cursorTopic())
	}
	return fmt.Sprintf("{kafka: {brokers: [%s], topic: %q}}", brokers, t.Topic)
}

func (t KafkaTopic) transactions() bool { return t.ExactlyOnce || t.Committed }

func (t KafkaTopic) cursorTopic() string { return t.Topic + "-cursor" }

func (t KafkaTopic) seeds() kgo.Opt { return kgo.SeedBrokers(strings.Split(t.Addr, ",")...) }

func (t KafkaTopic) with(do func(*kadm.Client) error) error {
	if t.Client != nil {
		return do(kadm.NewClient(t.Client))
	}
	client, err := kgo.NewClient(t.seeds())
	if err != nil {
		return err
	}
	defer client.Close()
	return do(kadm.NewClient(client))
}

// Create waits while a topic of that name is being deleted still. Relays create none: one that did would come before
// it.
func (t KafkaTopic) Create(ctx context.Context) error {
	limit, compact := strconv.Itoa(cmp.Or(t.Largest, MaxMessage)), "compact"
	soon := "1000" // otherwise a minute's worth of deleted topics is on the disk
	config := map[string]*string{"max.message.bytes": &limit, "file.delete.delay.ms": &soon}
	return t.with(func(admin *kadm.Client) error {
		if t.ExactlyOnce {
			_, err := admin.CreateTopic(ctx, 1, -1, map[string]*string{"cleanup.policy": &compact}, t.cursorTopic())
			if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
				return err
			}
		}
		for {
			_, err := admin.CreateTopic(ctx, int32(t.partitions()), -1, config, t.Topic)
			if !errors.Is(err, kerr.TopicAlreadyExists) && !errors.Is(err, kerr.NotController) {
				return err
			}
			if pauseErr := Pause(ctx, 50*time.Millisecond); pauseErr != nil {
				return fmt.Errorf("%w: %w", err, pauseErr)
			}
		}
	})
}

func (t KafkaTopic) Delete(ctx context.Context) error {
	return t.with(func(admin *kadm.Client) error {
		_, err := admin.DeleteTopic(ctx, t.Topic)
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			return nil
		}
		return err
	})
}

// Forbid denies everything to everybody, which takes a server with an authorizer.
func (t KafkaTopic) Forbid(ctx context.Context) error {
	return t.with(func(admin *kadm.Client) error {
		results, err := admin.CreateACLs(ctx, t.denial())
		for _, r := range results {
			err = errors.Join(err, r.Err)
		}
		return err
	})
}

func (t KafkaTopic) Permit(ctx context.Context) error {
	return t.with(func(admin *kadm.Client) error {
		results, err := admin.DeleteACLs(ctx, t.denial())
		for _, r := range results {
			err = errors.Join(err, r.Err)
		}
		return err
	})
}

func (t KafkaTopic) denial() *kadm.ACLBuilder {
	return kadm.NewACLs().ResourcePatternType(kadm.ACLPatternLiteral).Topics(t.Topic).Operations(kadm.OpAll).Deny("User:*").DenyHosts("*")
}

// Answers asks the leader of each partition, by a new client each time, so that nothing of the past slows it down.
func (t KafkaTopic) Answers(ctx context.Context) error {
	return askUntil(ctx, func(ctx context.Context) error {
		ends, err := t.ends(ctx)
		if err == nil && len(ends) != t.partitions() {
			err = fmt.Errorf("%d of %d partitions of topic %s", len(ends), t.partitions(), t.Topic)
		}
		return err
	})
}

// ends are where the partitions end.
func (t KafkaTopic) ends(ctx context.Context) (of map[int32]kadm.ListedOffset, err error) {
	err = t.with(func(admin *kadm.Client) error {
		ends, err := admin.ListEndOffsets(ctx, t.Topic)
		if err == nil {
			err = ends.Error()
		}
		of = ends[t.Topic]
		return err
	})
	return of, err
}

func (t KafkaTopic) Grown(ctx context.Context) (n int, err error) {
	ends, err := t.ends(ctx)
	for _, end := range ends {
		n += int(max(end.Offset, 0))
	}
	return n, err
}

// InSync returns nil if every replica of every partition of the cluster, the server's own topics included, is in sync.
func (t KafkaTopic) InSync(ctx context.Context) error {
	return t.with(func(admin *kadm.Client) error {
		topics, err := admin.ListTopicsWithInternal(ctx)
		if err == nil {
			err = topics.Error()
		}
		topics.EachPartition(func(p kadm.PartitionDetail) {
			if len(p.ISR) < len(p.Replicas) || p.Leader < 0 {
				err = errors.Join(err,
					fmt.Errorf("partition %d of %s: leader %d, replicas %d, in sync %d", p.Partition, p.Topic, p.Leader, p.Replicas, p.ISR))
			}
		})
		return err
	})
}

func (t KafkaTopic) Read(ctx context.Context) (Reader, error) {
	options := []kgo.Opt{t.seeds(), kgo.ConsumeTopics(t.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(pollTime)}
	if t.transactions() {
		// The records that end transactions have offsets too, and the last one may be such.
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	t.Client = client
	return &kafkaReader{KafkaTopic: t, next: map[int32]int64{}}, nil
}

type kafkaReader struct {
	KafkaTopic
	next map[int32]int64 // by partition
}

func (r *kafkaReader) Next(ctx context.Context) ([][]byte, error) {
	poll, cancel := context.WithTimeout(ctx, 2*pollTime)
	defer cancel()
	fetches := r.Client.PollFetches(poll)
	var payloads [][]byte
	for record := range fetches.RecordsAll() {
		want := r.next[record.Partition]
		if record.Offset != want && (!r.transactions() || record.Offset < want) { // what was aborted leaves gaps
			return nil, fmt.Errorf("partition %d: offset %d came instead of %d", record.Partition, record.Offset, want)
		}
		r.next[record.Partition] = record.Offset + 1
		if !record.Attrs.IsControl() {
			payloads = append(payloads, record.Value)
		}
	}
	return payloads, ctx.Err()
}

func (r *kafkaReader) AtEnd(ctx context.Context) (bool, error) {
	ends, err := r.ends(ctx)
	if err == nil && len(ends) == 0 {
		err = errors.New("it has no partitions")
	}
	if kerr.IsRetriable(err) { // a topic that has just come back may have no leader yet
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("end of topic %s: %w", r.Topic, err)
	}
	for p, end := range ends {
		if end.Offset > r.next[p] {
			return false, nil
		}
	}
	return true, nil
}

func (r *kafkaReader) Close() { r.Client.Close() }
