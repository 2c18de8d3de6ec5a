package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// probe does what a publish does, up to the connections to the servers that take the records: it asks a server where
// these are, and asks them something. It changes nothing.
func (c *cluster) probe(ctx context.Context) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none; nil stands for all
	if c.topic.Constant() {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &c.topic.Literals[0]
		req.Topics = append(req.Topics, topic)
		req.IncludeTopicAuthorizedOperations = true
	}
	resp, err := req.RequestWith(ctx, c.control)
	if err != nil {
		return c.down(err)
	}
	for i := range resp.Topics {
		leaders, err := c.leaders(&resp.Topics[i])
		if err != nil {
			return err
		}
		if len(leaders) > 0 {
			return c.reach(ctx, resp.Brokers, leaders)
		}
	}
	return c.reach(ctx, resp.Brokers, nil)
}

// leaders returns the servers that lead the partitions of a topic, which must be ready for messages; none if the topic
// would be created.
func (c *cluster) leaders(t *kmsg.MetadataResponseTopic) (map[int32]bool, error) {
	name := c.topic.Literals[0]
	const unknown = math.MinInt32 // what servers that don't tell answer
	switch err := kerr.ErrorForCode(t.ErrorCode); {
	case errors.Is(err, kerr.UnknownTopicOrPartition) && c.cfg.CreateTopics:
		return nil, nil
	case err != nil && !kerr.IsRetriable(err), errors.Is(err, kerr.UnknownTopicOrPartition):
		return nil, c.topicError(name, err)
	case t.AuthorizedOperations != unknown && t.AuthorizedOperations&(1<<kmsg.ACLOperationWrite) == 0:
		return nil, c.topicError(name, kerr.TopicAuthorizationFailed)
	}
	leaders := map[int32]bool{}
	for _, p := range t.Partitions {
		if p.Leader < 0 {
			return nil, c.down(fmt.Errorf("topic %q: partition %d has no leader", name, p.Partition))
		}
		leaders[p.Leader] = true
	}
	return leaders, nil
}

// reach asks servers of the cluster, at once, at the addresses that the cluster gives for them: all of these must
// answer, or any server if none is named.
func (c *cluster) reach(ctx context.Context, servers []kmsg.MetadataResponseBroker, these map[int32]bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, len(servers))
	requests := 0
	for _, s := range servers {
		if these != nil && !these[s.NodeID] {
			continue
		}
		requests++
		go func() {
			req := kmsg.NewPtrMetadataRequest()
			req.Topics = []kmsg.MetadataRequestTopic{}
			_, err := c.control.Broker(int(s.NodeID)).Request(ctx, req)
			if err != nil {
				err = fmt.Errorf("server %d of the cluster doesn't answer at %s:%d, the address that the cluster gives for it "+
					"(advertised.listeners); it must be one that resolves and can be reached from here: %w",
					s.NodeID, s.Host, s.Port, explain(err))
			}
			answers <- err
		}()
	}
	var fault error
	for range requests {
		err := <-answers
		if err == nil && these == nil {
			return nil
		}
		if fault == nil {
			fault = err
		}
		if fault != nil && these != nil {
			break
		}
	}
	if fault == nil {
		return nil
	}
	return fmt.Errorf("kafka: %w", fault)
}
