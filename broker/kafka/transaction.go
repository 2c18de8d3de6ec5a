package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/twmb/franz-go/pkg/kgo"
)

// transactor lets a seat publish each part of a call in a transaction. The transaction also writes a record
// to the cursor topic, which names all messages that this seat has published and that may not be settled.
type transactor struct {
	id   string // the transactional id
	open *unsettled

	record kgo.Record // of the cursor topic
	value  []byte

	attempt   uint64 // of the last transaction that was committed, 0 if none is known
	parts     []*part
	pending   *part // of the current transaction, or of the one whose outcome is unknown
	takenBack bool  // the last transaction was aborted regularly
}

// transactionTimeout is how long a transaction may last before the cluster aborts it: longer than a call continues
// without an answer, and not much longer, because consumers that read committed records wait for it.
func (cfg *Config) transactionTimeout() time.Duration { return cfg.Unanswered + 5*time.Second }

var (
	errNoProducer = errors.New("the producer has to be made anew")
	errStranger   = errors.New("a message was not read by this destination's session")
)

// maxCursorRecord bounds a record of the cursor topic, whose max.message.bytes is 1 MiB by default.
const maxCursorRecord = 1_000_000

// produce creates the client of a seat with transactions, and fences the last owner of its transactional id: when it
// returns, that owner's open transaction is committed or aborted.
func (s *seat) produce(ctx context.Context) error {
	s.discard()
	err := s.connect(s.cluster.currentGeneration(),
		kgo.TransactionalID(s.tx.id),
		kgo.TransactionTimeout(s.cluster.cfg.transactionTimeout()),
		kgo.ConcurrentTransactionsBackoff(5*time.Millisecond))
	if err != nil {
		return err
	}
	if _, _, err := s.client.ProducerID(ctx); err != nil {
		s.discard()
		return err
	}
	return nil
}

// stage adds a part of a call to the record of the current transaction, and buffers that record.
func (s *seat) stage(batch []*outbox.Message, which []int32) error {
	t := s.tx
	attempt := rand.Uint64() | 1
	p, ok := t.open.take(attempt, batch, which)
	if !ok {
		s.discard()
		return errStranger
	}
	t.parts = t.open.live(t.parts)
	t.value = appendCursor(t.value[:0], attempt, t.parts, p)
	if len(t.value) > maxCursorRecord {
		t.open.giveBack(p)
		s.discard()
		return fmt.Errorf("the record of the transaction has %d bytes, at most %d fit: lower the destination's max_in_flight",
			len(t.value), maxCursorRecord)
	}
	t.pending = p
	t.record.Value, t.record.Timestamp = t.value, time.Time{}
	s.buffer(&t.record)
	return nil
}

// transact ends the transaction whose records are buffered: either all of them are accepted and it is committed, or
// none is. errUnsent, with takenBack, means that some were refused and the transaction was aborted, so the rest can be
// sent again. After any other error the seat has no client, and pending may have been committed.
func (s *seat) transact(ctx context.Context) error {
	t := s.tx
	err := s.awaitPlaced(ctx)
	if err == nil {
		err = s.flush(ctx)
	}
	// The end of the transaction has the same time limit as other requests; if ctx ends, it has another second.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cluster.cfg.Unanswered)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-ending.Done():
		case <-time.After(time.Second):
			cancel()
		}
	})()
	if err == nil && s.failed.Load() == 0 {
		if err = s.client.EndTransaction(ending, kgo.TryCommit); err == nil {
			t.keep()
			return nil
		}
		s.end()
		return fmt.Errorf("commit of the transaction, whose outcome is unknown: %w", err)
	}
	if err == nil || errors.Is(err, errUnsent) {
		if err = s.abort(ending); err == nil {
			t.takenBack = true
			t.giveBack()
			return errUnsent
		}
	}
	s.end()
	t.giveBack() // the commit was not requested
	return err
}

// abort aborts the transaction if a record was refused; other errors are not about messages.
func (s *seat) abort(ctx context.Context) error {
	if err := s.client.AbortBufferedRecords(ctx); err != nil {
		return err
	}
	s.awaitOutcomes()
	for record, cause := range s.failures {
		switch v := verdictOn(cause); {
		case v == unknownOutcome:
			return cause
		case v != notSent && record == &s.tx.record:
			return fmt.Errorf("cursor topic %q: %w", record.Topic, cause)
		}
	}
	return s.client.EndTransaction(ctx, kgo.TryAbort)
}

func (s *seat) takenBack() bool { return s.tx != nil && s.tx.takenBack }

// keep notes that the pending transaction was committed.
func (t *transactor) keep() {
	t.open.keep(t.pending)
	t.parts = append(t.parts, t.pending)
	t.attempt, t.pending = t.pending.attempt, nil
}

// giveBack notes that the pending transaction was not committed.
func (t *transactor) giveBack() {
	t.open.giveBack(t.pending)
	t.pending = nil
}
