package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/internal/lanes"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ConsumerConfig configures what a Consumer reads. Group and Topics are required.
type ConsumerConfig struct {
	// Group is the consumer group. Its members share the partitions, and the group stores their offsets.
	Group string

	// Topics are the topics to read.
	Topics []string

	// Instance, if set, is a name that this member keeps across restarts (group.instance.id): if it is back within
	// SessionTimeout, no partition moves.
	Instance string

	// SessionTimeout is the silence after which a member loses its partitions. Default 45 s.
	SessionTimeout time.Duration

	// RebalanceTimeout is how long a member may take to release partitions. It must be longer than Handling's
	// DrainTimeout and Grace together. Default: 15 s longer.
	RebalanceTimeout time.Duration

	// FromEnd makes a new group begin with messages that come from now on. Default: with the oldest available message.
	FromEnd bool

	// CommitInterval is the pause between commits of offsets. After a crash, the messages handled since the last commit
	// come again. Default 500 ms.
	CommitInterval time.Duration

	// Handling configures how messages are handled.
	Handling consume.Config
}

// Consumer passes the messages of topics to a handler, as a member of a group.
type Consumer struct {
	broker *Broker // for the options of its connections; it publishes nothing
	cfg    ConsumerConfig
	engine *lanes.Engine

	client *kgo.Client // of Run

	// committing makes one commit end before the next is prepared: an older commit that arrived later would move the
	// group back. It is taken before mu.
	committing sync.Mutex

	mu         sync.Mutex
	partitions map[topicPartition]*partition
}

type topicPartition struct {
	topic string
	n     int32
}

// fetchWait is how long the cluster waits for records before it answers with none.
const fetchWait = 250 * time.Millisecond

// NewConsumer returns a Consumer. conn configures the connection; its options for publishing are ignored. It reports
// all faults together and doesn't connect.
func NewConsumer(conn Config, cfg ConsumerConfig, handler consume.Handler) (*Consumer, error) {
	var faults settings.Faults
	faults.Need(cfg.Group != "", "Group", "not given: name what consumes, such as payments; it is what the offsets are kept under")
	faults.Need(len(cfg.Topics) > 0, "Topics", "none is given")
	settings.Positive(&faults, "SessionTimeout", &cfg.SessionTimeout, 45*time.Second)
	settings.Positive(&faults, "CommitInterval", &cfg.CommitInterval, 500*time.Millisecond)
	engine := lanes.New(&faults, &cfg.Handling, conn.Logger, handler, lanes.Abilities{})
	if engine != nil {
		release := cfg.Handling.DrainTimeout + cfg.Handling.Grace
		settings.Default(&cfg.RebalanceTimeout, release+15*time.Second)
		faults.Need(cfg.RebalanceTimeout > release, "RebalanceTimeout",
			"%v, it must be longer than DrainTimeout and Grace together, or partitions are lost while handlers end", cfg.RebalanceTimeout)
	}
	broker, err := New(conn)
	faults.Add("", err)
	if err == nil {
		_ = broker.Close() // it has no connection yet
	}
	if err := faults.Err(); err != nil {
		return nil, fmt.Errorf("kafka: consumer: %w", err)
	}
	return &Consumer{broker: broker, cfg: cfg, engine: engine, partitions: map[topicPartition]*partition{}}, nil
}

// Run consumes until ctx ends. Then it waits for running handlers, commits what is done, leaves the group and returns
// nil. It returns an error if the consumer can't continue: too many handlers hang (consume.ErrHung). It waits for
// errors that the cluster may cure by itself. Run must not be called concurrently.
func (c *Consumer) Run(ctx context.Context) error { return c.engine.Run(ctx, c.run) }

func (c *Consumer) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reset := kgo.NewOffset().AtStart()
	if c.cfg.FromEnd {
		reset = kgo.NewOffset().AtEnd()
	}
	options := append(c.broker.options[:len(c.broker.options):len(c.broker.options)],
		kgo.ConsumerGroup(c.cfg.Group),
		kgo.ConsumeTopics(c.cfg.Topics...),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.ConsumeResetOffset(reset),
		kgo.FetchMaxWait(fetchWait),
		kgo.SessionTimeout(c.cfg.SessionTimeout),
		kgo.HeartbeatInterval(min(c.cfg.SessionTimeout/10, 3*time.Second)),
		kgo.RebalanceTimeout(c.cfg.RebalanceTimeout),
		kgo.DisableAutoCommit(),
		// Between a poll and AllowRebalance no partition is taken away, so polled records always belong to a partition
		// of ours.
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsRevoked(c.revoked),
		kgo.OnPartitionsLost(c.lost),
	)
	if c.cfg.Instance != "" {
		options = append(options, kgo.InstanceID(c.cfg.Instance))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return fmt.Errorf("kafka: consumer: %w", err)
	}
	c.client = client

	var committer sync.WaitGroup
	committer.Go(func() { c.commitNowAndThen(ctx) })
	err = c.poll(ctx)
	cancel()
	committer.Wait()
	c.revoked(ctx, client, c.mine())
	client.CloseAllowingRebalance()
	return errors.Join(err, c.engine.Hung())
}

func (c *Consumer) poll(ctx context.Context) error {
	polling, stop := context.WithCancel(ctx)
	defer stop()
	var failed error
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case failed = <-c.engine.Failed():
			stop()
		case <-polling.Done():
		}
	})
	for polling.Err() == nil {
		fetches := c.client.PollFetches(polling) // all of it: when a partition is paused, the client would drop the rest
		fetches.EachError(func(topic string, n int32, err error) {
			if polling.Err() == nil {
				c.cfg.Handling.Logger.Warn("fetch failed", "topic", topic, "partition", n, "error", c.broker.explain(err))
			}
		})
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if len(p.Records) > 0 {
				c.partition(topicPartition{p.Topic, p.Partition}).add(p.Records, p.HighWatermark)
			}
		})
		c.client.AllowRebalance()
	}
	stop()
	watch.Wait()
	return failed
}

func (c *Consumer) partition(at topicPartition) *partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.partitions[at]
	if p == nil {
		p = &partition{consumer: c, id: at, group: c.engine.Group(), limit: c.cfg.Handling.MaxInFlight}
		c.partitions[at] = p
	}
	return p
}

// mine returns all partitions from which something was fetched.
func (c *Consumer) mine() map[string][]int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string][]int32{}
	for at := range c.partitions {
		all[at.topic] = append(all[at.topic], at.n)
	}
	return all
}

// remove removes partitions, so that a later poll starts them anew.
func (c *Consumer) remove(gone map[string][]int32) (all []*partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for topic, numbers := range gone {
		for _, n := range numbers {
			if p := c.partitions[topicPartition{topic, n}]; p != nil {
				delete(c.partitions, p.id)
				all = append(all, p)
			}
		}
	}
	return all
}

// revoked releases partitions that another member is about to get. That member gets them when revoked returns, and
// begins behind the offsets that are committed here. So handlers end first, and no message is handled by two members.
func (c *Consumer) revoked(ctx context.Context, client *kgo.Client, gone map[string][]int32) {
	all := c.remove(gone)
	each(all, func(p *partition) { p.leave(p.group.Drain) })
	c.committing.Lock()
	c.commit(context.WithoutCancel(ctx), all)
	c.committing.Unlock()
	client.ResumeFetchPartitions(gone)
}

// lost ends the handlers of partitions that already belong to another member, which may be handling the same messages.
// It commits nothing: the group would refuse it. Handlers can no longer commit to the database either, because their
// contexts have ended.
func (c *Consumer) lost(_ context.Context, client *kgo.Client, gone map[string][]int32) {
	all := c.remove(gone)
	c.cfg.Handling.Logger.Warn("lost partitions: this member was silent for too long, and another has them", "partitions", gone)
	each(all, func(p *partition) { p.leave(p.group.Cut) })
	client.ResumeFetchPartitions(gone)
}

func each(all []*partition, do func(*partition)) {
	var doing sync.WaitGroup
	for _, p := range all {
		doing.Go(func() { do(p) })
	}
	doing.Wait()
}

func (c *Consumer) commitNowAndThen(ctx context.Context) {
	tick := time.NewTicker(c.cfg.CommitInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c.committing.Lock()
		c.mu.Lock()
		all := slices.Collect(maps.Values(c.partitions))
		c.mu.Unlock()
		c.commit(ctx, all)
		c.committing.Unlock()
		for _, p := range all {
			p.tellLag()
		}
	}
}
