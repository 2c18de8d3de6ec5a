package redis

import (
	"context"
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox"
	"github.com/redis/go-redis/v9"
)

// Ping checks that the server, or every master of the cluster, answers and accepts writes, and returns the reason if
// not. The user must be allowed to run scripts. If all messages go to one stream, its keys must be allowed too, and the
// stream must exist unless it would be created. Ping changes nothing.
func (b *Broker) Ping(ctx context.Context) error {
	var err error
	if cluster, ok := b.client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, b.pingNode)
	} else if node, nodeErr := b.node(ctx, ""); nodeErr != nil {
		err = nodeErr
	} else {
		err = b.pingNode(ctx, node)
	}
	if err == nil {
		err = b.pingScript(ctx)
	}
	if err == nil && b.streams.Constant() && !b.cfg.CreateStreams {
		err = b.pingStream(ctx, b.streams.Literals[0])
	}
	return outbox.Unavailable(err)
}

func (b *Broker) pingNode(ctx context.Context, node *redis.Client) error {
	ping, role := redis.NewCmd(ctx, "PING"), redis.NewCmd(ctx, "INFO", "replication")
	if err := b.exec(ctx, node, []redis.Cmder{ping, role}); err != nil {
		return err
	}
	if err := ping.Err(); err != nil {
		if isAnswer(err) {
			return fmt.Errorf("redis: %s refuses: %w", node.Options().Addr, err)
		}
		return noAnswer(err)
	}
	// If the user lacks the permission to ask, Ping assumes that all is well.
	if text, err := role.Text(); err == nil && infoField(text, "role") == "slave" {
		return fmt.Errorf("redis: %s is a replica, which takes no messages; give the address of the master, or of sentinels",
			node.Options().Addr)
	}
	return nil
}

// pingScript runs a script that does nothing, with the keys of the one that appends: rights to a key are checked when
// it is named.
func (b *Broker) pingScript(ctx context.Context) error {
	command, stream := []any{"EVAL", "return 1", 0}, ""
	if b.streams.Constant() {
		stream = b.streams.Literals[0]
		index, _ := indexName(stream)
		command = []any{"EVAL", "return 1", 4, stream, index + recentSuffix, index + olderSuffix, index + knownSuffix}
	}
	node, err := b.node(ctx, stream)
	if err != nil {
		return err
	}
	run := redis.NewCmd(ctx, command...)
	if err := b.exec(ctx, node, []redis.Cmder{run}); err != nil {
		return err
	}
	switch err := run.Err(); {
	case err == nil:
		return nil
	case isAnswer(err):
		return classify(answerOf(err), stream)
	default:
		return noAnswer(err)
	}
}

func (b *Broker) pingStream(ctx context.Context, stream string) error {
	node, err := b.node(ctx, stream)
	if err != nil {
		return err
	}
	exists := redis.NewCmd(ctx, "EXISTS", stream)
	if err := b.exec(ctx, node, []redis.Cmder{exists}); err != nil {
		return err
	}
	if n, err := exists.Int(); err == nil && n == 0 {
		return missing(stream)
	}
	return nil
}

func missing(stream string) error {
	return outbox.TopicUnavailable(fmt.Errorf("redis: stream %q does not exist: create it, for example by: XGROUP "+
		"CREATE '%s' mygroup $ MKSTREAM, or set CreateStreams", stream, stream))
}

// inspectOnce warns about settings that endanger the guarantees. No caller waits for it. A user without the permission
// to ask only misses the warning.
func (b *Broker) inspectOnce() {
	b.mu.Lock()
	done := b.inspected
	b.inspected = true
	b.mu.Unlock()
	if done {
		return
	}
	b.start(func() {
		ctx, cancel := context.WithTimeout(b.background, b.cfg.AckTimeout)
		defer cancel()
		text, err := b.client.Info(ctx).Result()
		if err != nil {
			b.cfg.Logger.Debug("server settings not checked", "error", err)
			return
		}
		b.warn(text)
	})
}

func (b *Broker) warn(info string) {
	if infoField(info, "aof_enabled") == "0" {
		b.cfg.Logger.Warn("redis keeps no append-only file: acknowledged messages are lost when it restarts; set appendonly yes")
	}
	if policy := infoField(info, "maxmemory_policy"); strings.HasPrefix(policy, "allkeys-") {
		b.cfg.Logger.Warn("redis evicts keys when its memory is full, streams among them; set maxmemory-policy noeviction",
			"policy", policy)
	}
}

// infoField returns a field of an INFO.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, found := strings.CutPrefix(line, name+":"); found {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
