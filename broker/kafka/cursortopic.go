package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The settings of a created cursor topic: short segments, compacted early, so that the topic is quick to read.
var cursorSettings = [][2]string{
	{cleanupPolicy, "compact"}, {"segment.bytes", strconv.Itoa(16 << 20)}, {"min.cleanable.dirty.ratio", "0.01"},
}

// requireTransactions refuses a cluster without transaction version 2: before it, a late request could join the next
// transaction, or leave one hanging (KIP-890).
func (c *cluster) requireTransactions(ctx context.Context) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "pgoutbox", "0"
	resp, err := req.RequestWith(ctx, c.control)
	if err != nil {
		return outbox.Unavailable(c.down(err))
	}
	version := int16(0)
	for _, f := range resp.FinalizedFeatures {
		if f.Name == "transaction.version" {
			version = f.MaxVersionLevel
		}
	}
	if version < 2 {
		return outbox.Permanent(fmt.Errorf("kafka: exactly-once needs transaction.version 2, and the cluster has %d, "+
			"with which transactions can be torn; use Kafka 4.0 or later and run: kafka-features.sh upgrade --feature "+
			"transaction.version=2; or leave exactly_once out",
			version))
	}
	return nil
}

// requireCursorTopic refuses a cursor topic that would lose records. It creates the topic first if it may.
func (c *cluster) requireCursorTopic(ctx context.Context, name string) error {
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &name
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, c.control)
	if err != nil {
		return outbox.Unavailable(c.down(err))
	}
	for _, t := range resp.Topics {
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case errors.Is(err, kerr.UnknownTopicOrPartition) && c.cfg.CreateTopics:
			return c.createCursorTopic(ctx, name)
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			return outbox.Permanent(fmt.Errorf("kafka: the cursor topic %q doesn't exist; create it:\n  %s\nor set create_topics: true",
				name, c.createCursorCommand(name)))
		case errors.Is(err, kerr.TopicAuthorizationFailed):
			return outbox.Permanent(fmt.Errorf("kafka: the cursor topic %q: not permitted; grant this user Describe, "+
				"DescribeConfigs, Read and Write on it: %w", name, err))
		case err != nil:
			return outbox.Unavailable(fmt.Errorf("kafka: the cursor topic %q: %w", name, err))
		case len(t.Partitions) != 1:
			return outbox.Permanent(fmt.Errorf("kafka: the cursor topic %q has %d partitions and must have one, which "+
				"says what came last; delete it while no relay runs and create it:\n  %s",
				name, len(t.Partitions), c.createCursorCommand(name)))
		}
	}
	return c.requireCompaction(ctx, name)
}

func (c *cluster) createCursorCommand(name string) string {
	var command strings.Builder
	command.WriteString(c.command(name, 1))
	for _, s := range cursorSettings {
		fmt.Fprintf(&command, " --config %s=%s", s[0], s[1])
	}
	return command.String()
}

func (c *cluster) createCursorTopic(ctx context.Context, name string) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, 1, -1
	if c.cfg.ReplicationFactor > 0 {
		topic.ReplicationFactor = c.cfg.ReplicationFactor
	}
	for _, s := range cursorSettings {
		config := kmsg.NewCreateTopicsRequestTopicConfig()
		config.Name, config.Value = s[0], &s[1]
		topic.Configs = append(topic.Configs, config)
	}
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, c.control)
	if err != nil {
		return outbox.Unavailable(c.down(err))
	}
	for _, t := range resp.Topics {
		err := kerr.ErrorForCode(t.ErrorCode)
		if err == nil || errors.Is(err, kerr.TopicAlreadyExists) {
			continue
		}
		reason := err.Error()
		if t.ErrorMessage != nil {
			reason += ": " + *t.ErrorMessage
		}
		return outbox.Permanent(fmt.Errorf("kafka: the cursor topic %q doesn't exist and can't be created, so create it by hand:\n  %s\n%s",
			name, c.createCursorCommand(name), reason))
	}
	return nil
}

func (c *cluster) requireCompaction(ctx context.Context, name string) error {
	req := kmsg.NewPtrDescribeConfigsRequest()
	resource := kmsg.NewDescribeConfigsRequestResource()
	resource.ResourceType, resource.ResourceName, resource.ConfigNames = kmsg.ConfigResourceTypeTopic, name, []string{cleanupPolicy}
	req.Resources = append(req.Resources, resource)
	resp, err := req.RequestWith(ctx, c.control)
	if err != nil {
		return outbox.Unavailable(c.down(err))
	}
	for _, r := range resp.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			if kerr.IsRetriable(err) {
				return outbox.Unavailable(fmt.Errorf("kafka: settings of the cursor topic %q: %w", name, err))
			}
			return outbox.Permanent(fmt.Errorf("kafka: the settings of the cursor topic %q can't be read; grant this "+
				"user DescribeConfigs on it: %w", name, err))
		}
		for _, c := range r.Configs {
			if c.Name == cleanupPolicy && c.Value != nil && *c.Value != "compact" {
				return outbox.Permanent(fmt.Errorf("kafka: the cursor topic %q has cleanup.policy=%s and would forget "+
					"what was delivered; set it to compact: kafka-configs.sh --alter --entity-type topics "+
					"--entity-name %s --add-config cleanup.policy=compact",
					name, *c.Value, name))
			}
		}
	}
	return nil
}

// mark commits a record with a key of its own to the cursor topic. A reader that has read the topic up to it has seen
// everything that was committed before.
func (s *seat) mark(ctx context.Context, key string) (attempt uint64, err error) {
	attempt = rand.Uint64() | 1
	if err := s.begin(0); err != nil {
		return 0, err
	}
	record := &kgo.Record{Topic: s.tx.record.Topic, Key: []byte(cursorKey + key), Value: appendCursor(nil, attempt, nil, nil)}
	s.buffer(record)
	err = s.awaitPlaced(ctx)
	if err == nil {
		err = s.flush(ctx)
	}
	if err == nil && s.failed.Load() == 0 {
		err = s.client.EndTransaction(ctx, kgo.TryCommit)
		if err == nil {
			return attempt, nil
		}
	}
	s.end()
	if cause := s.failures[record]; cause != nil && !errors.Is(cause, kgo.ErrClientClosed) {
		err = cause
	}
	return 0, fmt.Errorf("write to the cursor topic %q: %w", record.Topic, err)
}

// readCursors returns the last committed record of each key of the cursor topic, up to the mark. It ignores records
// that are not a relay's, damaged or not: records with other keys, and records outside a transaction, because a relay
// never writes those. If the last record of a key is ignored, the one before counts. If that was compacted away, it is
// no longer known what was published.
func (c *cluster) readCursors(ctx context.Context, topic, key string, mark uint64) (map[string]*part, error) {
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(100 * time.Millisecond),
	}, c.options...)...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	values, spoilt := map[string][]byte{}, map[string]int64{}
	for {
		fetches := client.PollFetches(ctx)
		if err := errors.Join(ctx.Err(), fetches.Err0()); err != nil {
			return nil, fmt.Errorf("read the cursor topic %q: %w", topic, cmp.Or(c.hanging(ctx, topic), err))
		}
		for r := range fetches.RecordsAll() {
			id, ours := strings.CutPrefix(string(r.Key), cursorKey)
			switch {
			case !ours:
				continue
			case !r.Attrs.IsTransactional():
				spoilt[id] = r.Offset
				continue
			case id != key:
				values[id] = r.Value
				continue
			}
			p, err := parseCursor(r.Value)
			if err != nil {
				return nil, fmt.Errorf("read the cursor topic %q at offset %d: %w", topic, r.Offset, err)
			}
			if p.attempt != mark {
				continue
			}
			for id, offset := range spoilt {
				if _, found := values[id]; !found && id != key {
					return nil, outbox.Permanent(fmt.Errorf("kafka: the cursor topic %q, key %q: something that is no "+
						"relay has written the record at offset %d, and none of a relay is "+
						"left of this key, so it is unknown what was published last: let no other program write there, "+
						"delete the topic while no relay runs and create it:\n  %s\n"+
						"what was in flight is then sent again", topic, id, offset, c.createCursorCommand(topic)))
				}
			}
			return parseCursors(topic, values)
		}
	}
}

// hanging names the transaction that prevents the cursor topic from being read, nil if there is none. Transactions of
// this group have ended before the topic is read.
func (c *cluster) hanging(ctx context.Context, topic string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	req := kmsg.NewPtrDescribeProducersRequest()
	producers := kmsg.NewDescribeProducersRequestTopic()
	producers.Topic, producers.Partitions = topic, []int32{0}
	req.Topics = append(req.Topics, producers)
	resp, err := req.RequestWith(ctx, c.control)
	if err != nil {
		return nil // the answer would only be a hint
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			for _, a := range p.ActiveProducers {
				if a.CurrentTxnStartOffset >= 0 {
					return fmt.Errorf("the transaction of producer %d, epoch %d, that began at offset %d has not "+
						"ended since %s; if that lasts, it hangs and everybody who reads committed records waits for "+
						"it: docs/brokers/kafka.md says what to do",
						a.ProducerID, a.ProducerEpoch, a.CurrentTxnStartOffset,
						time.UnixMilli(a.LastTimestamp).UTC().Format(time.RFC3339))
				}
			}
		}
	}
	return nil
}

func parseCursors(topic string, values map[string][]byte) (map[string]*part, error) {
	cursors := make(map[string]*part, len(values))
	for key, value := range values {
		p, err := parseCursor(value)
		if err != nil {
			return nil, outbox.Permanent(fmt.Errorf("kafka: the cursor topic %q, key %q: %w", topic, key, err))
		}
		cursors[key] = p
	}
	return cursors, nil
}
