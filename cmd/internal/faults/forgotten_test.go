package faults

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A Kafka 4.3 that is controller and broker in one forgets to end a transaction now and then, when it comes back from
// being killed: it loads the transaction log before it knows that it leads the other partitions, takes those for
// deleted ("likely deleted already and hence can be skipped") and notes that the transaction is complete. Its
// partitions have no marker then, and stay closed for who reads committed records. The test does what the server has
// left out, as the server's own log says that it was to be, and counts it.

// endForgotten ends the transactions that are over for the coordinator and open in a partition.
func endForgotten(ctx context.Context, addr string, topics ...string) (ended int, err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	var everywhere kadm.TopicsSet
	for _, topic := range topics {
		details, err := admin.ListTopics(ctx, topic)
		if err == nil {
			err = details.Error()
		}
		if err != nil {
			return 0, err
		}
		for _, p := range details[topic].Partitions.Numbers() {
			everywhere.Add(topic, p)
		}
	}
	described, err := admin.DescribeProducers(ctx, everywhere)
	if err != nil {
		return 0, fmt.Errorf("describe producers: %w", err)
	}
	// Only after the partitions were looked at: what is complete here has no markers on their way.
	log, err := readTransactionLog(ctx, addr, admin)
	if err != nil {
		return 0, fmt.Errorf("read the transaction log: %w", err)
	}
	for _, p := range described.SortedProducers() {
		committed, over := log[transaction{p.ProducerID, p.ProducerEpoch + 1}]
		if p.CurrentTxnStartOffset < 0 || !over {
			continue
		}
		var where kadm.TopicsSet
		where.Add(p.Topic, p.Partition)
		answers, err := admin.WriteTxnMarkers(ctx, kadm.TxnMarkers{ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch + 1,
			Commit: committed, CoordinatorEpoch: p.CoordinatorEpoch, Topics: where})
		for _, a := range answers.SortedPartitions() {
			err = errors.Join(err, a.Err)
		}
		if err != nil {
			return ended, fmt.Errorf("write a marker: %w", err)
		}
		ended++
	}
	return ended, nil
}

// transaction is one of a producer: its end has the next epoch.
type transaction struct {
	producer int64
	epoch    int16
}

// readTransactionLog returns the transactions that have ended for the coordinator, and whether they were committed.
func readTransactionLog(ctx context.Context, addr string, admin *kadm.Client) (map[transaction]bool, error) {
	const topic = "__transaction_state"
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, err
	}
	left := map[int32]int64{}
	from := map[int32]kgo.Offset{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition], from[o.Partition] = o.Offset, kgo.NewOffset().AtStart()
		}
	})
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ended := map[transaction]bool{}
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		for r := range fetches.RecordsAll() {
			var value kmsg.TxnMetadataValue
			if err := value.ReadFrom(r.Value); err != nil && r.Value != nil {
				return nil, err
			}
			switch value.State {
			case kmsg.TransactionStateCompleteCommit, kmsg.TransactionStateCompleteAbort:
				ended[transaction{value.ProducerID, value.ProducerEpoch}] = value.State == kmsg.TransactionStateCompleteCommit
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		}
	}
	return ended, nil
}

// flowingAgain is flowing after the broker was away. It returns how many markers the broker had forgotten.
func (w *world) flowingAgain(within time.Duration) (forgotten int) {
	w.t.Helper()
	for deadline := time.Now().Add(within); ; {
		_, err := w.load.Flows(w.t.Context(), 10*time.Second)
		if err == nil {
			return forgotten
		}
		n, failed := endForgotten(w.t.Context(), w.broker.server.Addr(), "events", "outbox-events-cursor")
		if forgotten += n; n == 0 && time.Now().After(deadline) {
			w.t.Fatal(errors.Join(err, failed)) // until then it may have no leaders yet
		}
	}
}
