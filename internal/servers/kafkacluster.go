package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
)

// KafkaCluster is three brokers and a controller of their own, as people run Kafka: each partition, those of the
// transaction log too, is on all three, and a write is acknowledged when two have it. One broker at a time may be
// killed, frozen or stopped, and the other two go on. Broker n of the slice has node id n+1.
type KafkaCluster struct {
	Brokers    []*Kafka
	controller *Kafka
}

const clusterBrokers = 3

// StartKafkaCluster starts a cluster and returns when all brokers answer, after 5 to 15 s. The caller must Close it.
// The error wraps [ErrNotFound] when Kafka or Java isn't installed. The config is that of each node, without Front and
// Storage.
func StartKafkaCluster(ctx context.Context, config KafkaConfig) (*KafkaCluster, error) {
	if config.Front != "" || config.Storage != "" {
		return nil, errors.New("start a Kafka cluster: Front and Storage are for a single node")
	}
	settings := map[string]string{
		"default.replication.factor":               "3",
		"min.insync.replicas":                      "2",
		"offsets.topic.replication.factor":         "3",
		"transaction.state.log.replication.factor": "3",
		"transaction.state.log.min.isr":            "2",
		// A broker that is only slow, on a busy machine, must not be taken for a dead one: then all three may be.
		"broker.session.timeout.ms":    "6000",
		"broker.heartbeat.interval.ms": "1000",
	}
	maps.Copy(settings, config.Settings)
	config.Settings = settings

	controller, err := startKafka(ctx, config, kafkaNode{id: clusterBrokers + 1, role: controllerRole})
	if err != nil {
		return nil, err
	}
	c := &KafkaCluster{Brokers: make([]*Kafka, clusterBrokers), controller: controller}
	var all sync.WaitGroup
	errs := make([]error, clusterBrokers)
	for i := range c.Brokers {
		all.Go(func() {
			c.Brokers[i], errs[i] = startKafka(ctx, config, kafkaNode{id: i + 1, role: brokerRole, controller: controller})
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// OwnKafkaCluster returns a cluster that is the test's alone. It is started even if the environment has an address. It
// is closed at the end of the test. At most one config is given.
func OwnKafkaCluster(t testing.TB, config ...KafkaConfig) *KafkaCluster {
	t.Helper()
	return own(t, StartKafkaCluster, config)
}

// Addr returns host:port of all brokers, with commas.
func (c *KafkaCluster) Addr() string {
	var addrs []string
	for _, b := range c.Brokers {
		addrs = append(addrs, b.Addr())
	}
	return strings.Join(addrs, ",")
}

// Log returns the ends of what the nodes have written.
func (c *KafkaCluster) Log() string {
	var log strings.Builder
	for _, k := range c.nodes() {
		fmt.Fprintf(&log, "node %d:\n%s\n", k.node.id, k.Log())
	}
	return log.String()
}

// Close ends all nodes and removes their data. A second Close does nothing.
func (c *KafkaCluster) Close() error {
	var errs []error
	for _, k := range c.nodes() {
		errs = append(errs, k.Close())
	}
	return errors.Join(errs...)
}

// nodes are those that have started, the controller last.
func (c *KafkaCluster) nodes() []*Kafka {
	var nodes []*Kafka
	for _, b := range c.Brokers {
		if b != nil {
			nodes = append(nodes, b)
		}
	}
	return append(nodes, c.controller)
}
