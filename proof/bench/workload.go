package main

import (
	"fmt"
	"strconv"

	"github.com/pgoutbox/outbox/internal/check"
)

// Names of workloads.
const (
	Seed = "seed" // the articles'
	Ours = "ours" // of the other benchmarks
)

// Workload is how messages lie in the table and in the broker.
type Workload struct {
	topics, partitions int   // and partitions of each topic, also virtual ones
	rows               []int // of transactions, by turns
	batch              int   // of the originals
}

// Workloads are those that a comparison knows.
//
// Seed has two topics of one partition, and transactions that a batch of 100 cuts. Ours has one topic of two
// partitions, 100 rows a transaction and batches of 1,000.
func Workloads() map[string]Workload {
	return map[string]Workload{
		Seed: {topics: 2, partitions: 1, rows: []int{3, 17, 7, 13}, batch: 100},
		Ours: {topics: 1, partitions: partitions, rows: []int{rowsPerTransaction}, batch: 1000},
	}
}

// block is what a writer writes before the next one's turn.
func (w Workload) block() (rows int) {
	for _, n := range w.rows {
		rows += n
	}
	return rows
}

// transactions are their sizes in words.
func (w Workload) transactions() string {
	if len(w.rows) == 1 {
		return strconv.Itoa(w.rows[0])
	}
	low, high := w.rows[0], w.rows[0]
	for _, n := range w.rows {
		low, high = min(low, n), max(high, n)
	}
	return fmt.Sprintf("%d to %d", low, high)
}

// work is the workload of a benchmark.
func (c *Config) work() Workload {
	if c.Bench == "strategies" {
		return Workloads()[c.Workload]
	}
	return Workloads()[Ours]
}

// numbered is a message for a key: keys are of one topic and one virtual partition each, by turns.
func (r *run) numbered(key int, seq uint64) seedMessage {
	turn := key / backlogWriters // so that a writer's transactions have messages of all
	topic := turn % r.work.topics
	m := seedMessage{topic: r.topics[topic], topicNo: topic,
		partition: turn / r.work.topics % r.work.partitions, key: keyName(key), seq: int(seq)}
	if r.Bench == "strategies" {
		m.payload = encodeJSON(uint32(key), seq, r.Bytes)
	} else {
		m.payload = check.Encode(nil, uint32(key), seq, r.Bytes)
	}
	if r.Headers > 0 {
		m.headers = headersOf(key, seq, r.Headers)
	}
	return m
}

// headersOf are n headers, all without escapes: the first is a trace context.
func headersOf(key int, seq uint64, n int) string {
	text := fmt.Appendf(nil, `{"traceparent":"00-%032x-%016x-01"`, key+1, seq)
	for i := 1; i < n; i++ {
		text = fmt.Appendf(text, `,"header-%d":"value %d"`, i, seq)
	}
	return string(append(text, '}'))
}
