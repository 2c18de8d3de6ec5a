package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// seat is what one call uses alone: a client, and memory that the next call on this seat reuses.
type seat struct {
	cluster   *cluster
	slab      slab
	plan      plan
	formatted formatted

	client     *kgo.Client // nil until needed, and after a failure
	tx         *transactor // nil: no transactions
	generation int         // of the limits that client knows
	promise    func(*kgo.Record, error)

	// The counts of one send. The library calls promises one after the other, so failures has one writer; it is read
	// when all are done.
	count    int64
	placed   atomic.Int64 // records in the buffer of a partition
	settled  atomic.Int64 // records with an outcome
	failed   atomic.Int64 // those of them that failed
	failures map[*kgo.Record]error
	wake     chan struct{} // signalled when one of these numbers changes
	barrier  chan struct{}
}

// Limits of a part, which is buffered at once.
const (
	partRecords = 16 << 10
	partBytes   = 32 << 20
)

func newSeat(c *cluster) *seat {
	s := &seat{
		cluster:  c,
		failures: map[*kgo.Record]error{},
		wake:     make(chan struct{}, 1),
		barrier:  make(chan struct{}, 1),
	}
	s.promise = s.onPromise
	return s
}

// open ensures that there is a client that knows the present limits.
func (s *seat) open() error {
	generation := s.cluster.currentGeneration()
	if s.client != nil && s.generation == generation {
		return nil
	}
	s.discard()
	if s.tx != nil {
		return errNoProducer // a new client would have to be fenced in
	}
	return s.connect(generation)
}

// connect creates the client.
func (s *seat) connect(generation int, more ...kgo.Opt) error {
	compression, err := codec(s.cluster.cfg.Compression)
	if err != nil {
		return err
	}
	options := append(more, s.cluster.options...)
	client, err := kgo.NewClient(append(options,
		kgo.WithHooks((*hook)(s)),
		kgo.ManualFlushing(),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.StopProducerOnDataLossDetected(),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerBatchCompression(compression),
		kgo.ProducerBatchMaxBytesFn(s.cluster.batchLimit),
		kgo.MaxBufferedRecords(partRecords+2), // a part, the barrier, and the transaction's own record
		kgo.ProducerLinger(0),
		// There are no RecordRetries, no RecordDeliveryTimeout and no contexts that end: with them the library would
		// give up a batch at a moment of its own choice.
	)...)
	if err != nil {
		return err
	}
	s.client, s.generation = client, generation
	return nil
}

// discard closes the client. Its promises are done, or will be soon.
func (s *seat) discard() {
	if s.client != nil {
		s.client.Close()
		s.client = nil
	}
}

// errUnsent is the outcome of records that were not sent because other records of the part can't be.
var errUnsent = errors.New("not sent")

// errUnanswered means that Config.Unanswered has passed.
var errUnanswered = errors.New("nothing was acknowledged")

// begin prepares for buffering n records.
func (s *seat) begin(n int) error {
	if err := s.open(); err != nil {
		return err
	}
	s.slab.reset(n)
	s.count = int64(n)
	if s.tx != nil {
		if err := s.client.BeginTransaction(); err != nil {
			s.discard()
			return err
		}
		s.tx.takenBack = false
		s.count++ // the transaction's own record
	}
	s.placed.Store(0)
	s.settled.Store(0)
	s.failed.Store(0)
	clear(s.failures)
	select {
	case <-s.wake:
	default:
	}
	return nil
}

// buffer passes a record to the client, which doesn't send it yet.
func (s *seat) buffer(r *kgo.Record) {
	s.client.Produce(context.Background(), r, s.promise)
}

// send sends the buffered records, which must be as many as begin was told, and returns when every one has an outcome.
// Then the library no longer uses them. failures has the errors of those that were not accepted; if there are any, the
// client is closed. The returned error is why send gave up before the cluster had answered; it is errUnsent if some
// records failed before any was sent.
func (s *seat) send(ctx context.Context) error {
	if s.tx != nil {
		return s.transact(ctx)
	}
	err := s.awaitPlaced(ctx)
	if err == nil {
		if err = s.flush(ctx); err == nil && s.failed.Load() == 0 {
			return nil
		}
	}
	s.end()
	return err
}

// end closes the client in the middle of a send. Close runs all remaining promises, and the library removes the records
// from what it has not written yet.
func (s *seat) end() {
	s.client.Close()
	s.awaitOutcomes()
	s.client = nil
}

func (s *seat) awaitOutcomes() {
	for s.settled.Load() < s.count {
		<-s.wake
	}
}

// awaitPlaced waits until every record is buffered and none of them has failed. The first records for a topic that this
// client doesn't know wait for its partitions.
//
// Another goroutine of the library reports failures. The barrier, a record that always fails, is reported after all of
// them: records without a topic fail before they are buffered, and promises run in the order in which they were made.
// Without the barrier, an early failure could be overlooked, and the rest of the key be sent. (A batch can be sent
// before the flush: the library's sender, late from the previous call, may look into the buffer once more. If that
// batch fails for good before the last record is buffered, the barrier shows it; if later, all others in its partition
// fail with it.)
func (s *seat) awaitPlaced(ctx context.Context) error {
	patience := time.NewTimer(s.cluster.cfg.Unanswered)
	defer patience.Stop()
	for s.placed.Load() < s.count && s.failed.Load() == 0 {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return ctx.Err()
		case <-patience.C:
			return errUnanswered
		}
	}
	s.client.TryProduce(context.Background(), &kgo.Record{}, func(*kgo.Record, error) { s.barrier <- struct{}{} })
	<-s.barrier
	if s.failed.Load() > 0 {
		return errUnsent
	}
	return nil
}

// flush sends the buffered records and waits for all outcomes, but at most Config.Unanswered without any.
//
// The library looks for buffered records when a flush begins, and the partitions of a newly learnt topic become visible
// a moment after their records are placed. So the flush is repeated from time to time, which costs nothing.
func (s *seat) flush(ctx context.Context) error {
	settled, since := s.settled.Load(), time.Now()
	for interval := 10 * time.Millisecond; ; interval = min(2*interval, time.Second) {
		round, cancel := context.WithTimeout(ctx, min(interval, s.cluster.cfg.Unanswered))
		err := s.client.Flush(round)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if now := s.settled.Load(); now != settled {
			settled, since = now, time.Now()
		}
		if time.Since(since) >= s.cluster.cfg.Unanswered {
			return errUnanswered
		}
	}
}

// onPromise takes the outcome of a record. Once the last one is counted, the next send may begin.
func (s *seat) onPromise(r *kgo.Record, err error) {
	if err == nil {
		if count := s.count; s.settled.Add(1) == count {
			s.notify()
		}
		return
	}
	s.failures[r] = err
	s.failed.Add(1)
	s.settled.Add(1)
	s.notify()
}

func (s *seat) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// hook counts the records that have been assigned to a partition.
type hook seat

var _ kgo.HookProduceRecordPartitioned = (*hook)(nil)

// OnProduceRecordPartitioned is called while the partition is locked, before the next record gets there.
func (h *hook) OnProduceRecordPartitioned(*kgo.Record, int32) {
	if count := h.count; h.placed.Add(1) == count {
		(*seat)(h).notify()
	}
}

// gaveUp describes why send returned early.
func (s *seat) gaveUp(err error) error {
	switch {
	case errors.Is(err, errUnanswered):
		return s.cluster.down(fmt.Errorf("%w for %v; the outcome is unknown and the message is sent again", err, s.cluster.cfg.Unanswered))
	default:
		return s.cluster.down(fmt.Errorf("no acknowledgement yet when the call ended: %w", err))
	}
}
