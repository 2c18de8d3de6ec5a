package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// lookup queries the cluster about topics, and remembers and returns those that can be published to. errs are the
// errors of the others; down means that no answer came.
func (c *cluster) lookup(ctx context.Context, names []string) (found topics, errs map[string]error, down error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Unanswered)
	defer cancel()
	errs = map[string]error{}
	exist, err := c.existing(ctx, names, errs)
	if err != nil {
		return nil, nil, c.down(err)
	}
	for name := range errs {
		c.forget(name)
	}
	if len(exist) == 0 {
		return nil, errs, nil
	}
	found = make(topics, len(exist))
	for _, name := range exist {
		found[name] = &topic{name: name, limit: c.cfg.MaxRecordBytes, assumed: true, checked: time.Now()}
	}
	if err := c.describe(ctx, found); err != nil {
		return nil, nil, c.down(err)
	}
	c.remember(found)
	return found, errs, nil
}

// describe reads the settings of topics, if permissions allow that.
func (c *cluster) describe(ctx context.Context, found topics) error {
	req := kmsg.NewPtrDescribeConfigsRequest()
	for name := range found {
		resource := kmsg.NewDescribeConfigsRequestResource()
		resource.ResourceType = kmsg.ConfigResourceTypeTopic
		resource.ResourceName = name
		resource.ConfigNames = []string{maxMessageBytes, cleanupPolicy}
		req.Resources = append(req.Resources, resource)
	}
	resp, err := req.RequestWith(ctx, c.control)
	if err != nil {
		return err
	}
	for _, resource := range resp.Resources {
		t := found[resource.ResourceName]
		if t == nil || resource.ErrorCode != 0 {
			continue
		}
		for _, config := range resource.Configs {
			if config.Value == nil {
				continue
			}
			switch config.Name {
			case maxMessageBytes:
				if limit, err := strconv.Atoi(*config.Value); err == nil {
					t.limit, t.assumed = min(max(limit, smallestLimit), largestLimit), false
				}
			case cleanupPolicy:
				t.compacted = strings.Contains(*config.Value, "compact")
			}
		}
	}
	return nil
}

// The topic settings that matter here.
const (
	maxMessageBytes = "max.message.bytes"
	cleanupPolicy   = "cleanup.policy"
)

// existing returns those of names that exist, after creating the missing ones if allowed. It puts the reasons for the
// others into errs.
func (c *cluster) existing(ctx context.Context, names []string, errs map[string]error) ([]string, error) {
	for created := false; ; {
		req := kmsg.NewPtrMetadataRequest()
		for _, name := range names {
			topic := kmsg.NewMetadataRequestTopic()
			topic.Topic = &name
			req.Topics = append(req.Topics, topic)
		}
		resp, err := req.RequestWith(ctx, c.control)
		if err != nil {
			return nil, err
		}
		var exist, missing []string
		for _, topic := range resp.Topics {
			if topic.Topic == nil {
				continue
			}
			switch name, err := *topic.Topic, kerr.ErrorForCode(topic.ErrorCode); {
			case errors.Is(err, kerr.UnknownTopicOrPartition):
				missing = append(missing, name)
			case err == nil, kerr.IsRetriable(err): // a partition without a leader will get one again
				exist = append(exist, name)
			default:
				errs[name] = c.topicError(name, err)
			}
		}
		switch {
		case len(missing) == 0:
			return exist, nil
		case !c.cfg.CreateTopics:
			for _, name := range missing {
				errs[name] = c.topicError(name, kerr.UnknownTopicOrPartition)
			}
			return exist, nil
		case !created:
			if err := c.create(ctx, missing, errs); err != nil {
				return nil, err
			}
			created = true
			names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return errs[name] != nil })
			if len(names) == 0 {
				return nil, nil
			}
		default: // the servers learn of a new topic one after the other
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
}

// create creates topics, and puts the errors of those that can't be created into errs.
func (c *cluster) create(ctx context.Context, names []string, errs map[string]error) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	for _, name := range names {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic = name
		topic.NumPartitions, topic.ReplicationFactor = -1, -1 // the cluster's defaults
		if c.cfg.Partitions > 0 {
			topic.NumPartitions = c.cfg.Partitions
		}
		if c.cfg.ReplicationFactor > 0 {
			topic.ReplicationFactor = c.cfg.ReplicationFactor
		}
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, c.control)
	if err != nil {
		return err
	}
	for _, topic := range resp.Topics {
		err := kerr.ErrorForCode(topic.ErrorCode)
		if err == nil || errors.Is(err, kerr.TopicAlreadyExists) {
			continue
		}
		reason := err.Error()
		if topic.ErrorMessage != nil {
			reason += ": " + *topic.ErrorMessage
		}
		errs[topic.Topic] = outbox.TopicUnavailable(fmt.Errorf("kafka: topic %q doesn't exist and can't be created, so "+
			"create it by hand: %s (the cluster says: %s)",
			topic.Topic, c.createCommand(topic.Topic), reason))
	}
	return nil
}

// remember adds topics. Clients size their batches by the limits that they find when they first use a topic, so a
// changed limit retires the clients.
func (c *cluster) remember(found topics) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := maps.Clone(*c.topics.Load())
	for name, t := range found {
		if before := all[name]; before != nil && before.limit != t.limit {
			c.generation++
		}
		all[name] = t
	}
	c.topics.Store(&all)
}

// learn notes that the server has refused a record of that size as too large, where the limit of its topic can't be
// read: until the topic is looked up again, no record of that size is sent. Otherwise each such record would cost a
// client, because the client that a record was refused to is given up. What compression makes of a record says nothing
// about another.
func (c *cluster) learn(t *topic, bytes int) {
	if !t.assumed || c.cfg.Compression != "none" {
		return
	}
	lower := *t
	lower.limit, lower.checked = max(min(t.limit, bytes-1), smallestLimit), time.Now()
	c.remember(topics{t.name: &lower})
}

// forget makes the next call look up a topic again.
func (c *cluster) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if (*c.topics.Load())[name] == nil {
		return
	}
	all := maps.Clone(*c.topics.Load())
	delete(all, name)
	c.topics.Store(&all)
	c.generation++
}

// batchLimit is called by the client library when it first uses a topic.
func (c *cluster) batchLimit(name string) int32 {
	if t := (*c.topics.Load())[name]; t != nil {
		return int32(t.limit + libraryMargin)
	}
	return int32(c.cfg.MaxRecordBytes + libraryMargin)
}
