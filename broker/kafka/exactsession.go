package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

// Source wraps the source of the destination that e publishes for. Acquire refuses, marked by outbox.Permanent, what
// waiting doesn't cure: a source without a cursor of its own, a cluster or a cursor topic that can't keep the promise,
// missing permissions. If the cluster doesn't answer, the session begins all the same, and Publish keeps trying.
func (e *ExactlyOnce) Source(inner relay.Source) relay.Source { return &source{inner, e} }

type source struct {
	relay.Source
	exactly *ExactlyOnce
}

func (s *source) Acquire(ctx context.Context) (relay.Session, error) {
	inner, err := s.Source.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	coupled, ok := inner.(relay.Coupled)
	if !ok {
		err = relay.Final(errors.New("kafka: exactly-once needs to know what is settled, and this strategy keeps " +
			"no cursor that could tell; read the outbox by snapshot or replication, or leave exactly_once out"))
		return nil, errors.Join(err, inner.Close(context.WithoutCancel(ctx)))
	}
	if err := s.exactly.recognize(ctx, coupled); err != nil {
		return nil, errors.Join(err, inner.Close(context.WithoutCancel(ctx)))
	}
	session := &session{Coupled: coupled, exactly: s.exactly}
	s.exactly.begin(session)
	if err := s.exactly.takeUp(ctx); outbox.IsPermanent(err) || errors.Is(err, relay.ErrLeaseLost) {
		return nil, errors.Join(err, session.Close(context.WithoutCancel(ctx)))
	}
	return session, nil
}

// recognize asks whether this cluster is the destination's, before anything is written there. A cluster that doesn't
// answer is asked again before it gets messages.
func (e *ExactlyOnce) recognize(ctx context.Context, session relay.Session) error {
	asking, cancel := context.WithTimeout(ctx, e.broker.cfg.Unanswered)
	defer cancel()
	names, err := e.Identity(asking)
	if err != nil || len(names) == 0 {
		return nil
	}
	return session.Recognize(ctx, names)
}

// begin makes s the session whose messages are published.
func (e *ExactlyOnce) begin(s *session) {
	e.gate.Lock()
	defer e.gate.Unlock()
	e.open.reset()
	e.session, e.fresh, e.tried = s, true, false
	e.ready.Store(false)
}

// session reports to an ExactlyOnce what is read and what is settled.
type session struct {
	relay.Coupled
	exactly *ExactlyOnce
}

func (s *session) Next(ctx context.Context, limit int) (relay.Batch, error) {
	batch, err := s.Coupled.Next(ctx, limit)
	if err == nil {
		s.exactly.open.read(batch.Deliveries)
	}
	return batch, err
}

func (s *session) Held(ctx context.Context, lanes []string, limit int) ([][]relay.Delivery, error) {
	lists, err := s.Coupled.Held(ctx, lanes, limit)
	if err == nil {
		for i, held := range lists {
			s.exactly.open.held(lanes[i], held)
		}
	}
	return lists, err
}

// Settle settles as the engine decides, except messages to be held or buried that a transaction has published after
// all.
func (s *session) Settle(ctx context.Context, settlement relay.Settlement) error {
	amended, unknown := s.exactly.open.amend(settlement)
	if unknown {
		if err := s.exactly.takeUp(ctx); err != nil {
			return fmt.Errorf("messages are to be held, and it is unknown whether they were published: %w", err)
		}
		amended, _ = s.exactly.open.amend(settlement)
	}
	if err := s.Coupled.Settle(ctx, amended); err != nil {
		return err
	}
	s.exactly.open.settled(&amended)
	return nil
}

// Close releases the transactional ids and ends the session. If ctx has ended, a call may hang and keep the gate: then
// the lease has to run out all the same, and the ids stay as they are until a successor fences them.
func (s *session) Close(ctx context.Context) error {
	if ctx.Err() == nil {
		s.exactly.gate.Lock()
	} else if !s.exactly.gate.TryLock() {
		return s.Coupled.Close(ctx)
	}
	s.exactly.end()
	s.exactly.gate.Unlock()
	return s.Coupled.Close(ctx)
}
