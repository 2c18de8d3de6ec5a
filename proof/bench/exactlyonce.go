package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// exactlyOnceTarget is a Kafka that is delivered to in transactions. Records that end transactions count among a
// topic's offsets, so how much has arrived is asked of the relay's cursor, which knows it a moment later.
type exactlyOnceTarget struct {
	*kafkaTarget
	conn *pgx.Conn
	id   string // of the transactions: another one for each run, which must find nothing of the one before
}

func newExactlyOnceTarget(to target, conn *pgx.Conn) (*exactlyOnceTarget, error) {
	k, ok := to.(*kafkaTarget)
	if !ok {
		return nil, errors.New("exactly-once is Kafka's")
	}
	return &exactlyOnceTarget{k, conn, "outbox-bench-" + strings.ToLower(rand.Text()[:8])}, nil
}

func (t *exactlyOnceTarget) yaml() string {
	return fmt.Sprintf("{kafka: {brokers: [%q], exactly_once: true, create_topics: true, transactional_id: %s}}", t.addr, t.id)
}

func (t *exactlyOnceTarget) count(ctx context.Context) (n int, err error) {
	err = t.conn.QueryRow(ctx, "SELECT coalesce(sum(delivered), 0) FROM outbox.cursors").Scan(&n)
	return n, err
}

// consume shows what was committed, and ends where the topic does: more may be there than the cursor knows of.
func (t *exactlyOnceTarget) consume(ctx context.Context, visit func([]byte) bool) error {
	ends, err := t.admin.ListEndOffsets(ctx, t.topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(t.addr), kgo.ConsumeTopics(t.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	defer client.Close()
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := errors.Join(ctx.Err(), fetches.Err()); err != nil {
			return err
		}
		for r := range fetches.RecordsAll() {
			if !r.Attrs.IsControl() {
				visit(r.Value)
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		}
	}
	return nil
}

// close removes the topic of the records that the transactions leave.
func (t *exactlyOnceTarget) close() {
	ctx, cancel := context.WithTimeout(context.Background(), hangUp)
	defer cancel()
	_, _ = t.admin.DeleteTopic(ctx, t.id+"-cursor") // best effort, as with the other
}
