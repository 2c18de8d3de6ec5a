package oteloutbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/relay"
)

// Sending describes what a relay sends to, and bounds its spans. The zero value is fit for use.
type Sending struct {
	// System is the broker by the conventions: kafka, rabbitmq, aws_sqs, aws.sns, gcp_pubsub. Default pgoutbox.
	System string

	// Destination is the name of the relay's destination. Default: none.
	Destination string

	// MaxSpans bounds the spans of one call to the broker, and of one settlement. A call may have thousands of
	// messages. Default 100.
	MaxSpans int

	// Skipped is called with the number of spans that were not made because of MaxSpans. It must not block. Default:
	// none.
	Skipped func(n int)
}

// Observer returns a relay's observer that makes a span of each message that is sent, and one of each dead letter, if
// the message's trace is sampled. A message that is sent again has a span for each time, except while the broker or the
// topic is unavailable: the first time stands for all until it is sent. next is told everything first; nil for none.
func (t *Tracer) Observer(s Sending, next relay.Observer) relay.Observer {
	if s.System == "" {
		s.System = noBroker
	}
	if s.MaxSpans <= 0 {
		s.MaxSpans = 100
	}
	return &observer{t, s, next, outages{}}
}

type observer struct {
	*Tracer
	Sending
	next    relay.Observer
	outages outages
}

var _ relay.Observer = (*observer)(nil)

func (o *observer) Published(batch []*outbox.Message, errs []error, ages []time.Duration, took time.Duration) {
	if o.next != nil {
		o.next.Published(batch, errs, ages, took)
	}
	ended := time.Now()
	made := o.budget()
	for i, m := range batch {
		var err error
		if errs != nil {
			err = errs[i]
		}
		if !sampled(m) || errors.Is(err, outbox.ErrSkipped) || !o.outages.needsSpan(m.ID, err) || !made.one() {
			continue
		}
		span := o.start("send", "send", m, ended.Add(-took))
		finish(span, err, trace.WithTimestamp(ended))
	}
	made.done()
}

func (o *observer) Settled(s *relay.Settlement) {
	if o.next != nil {
		o.next.Settled(s)
	}
	made := o.budget()
	for _, dead := range [][]relay.Dead{s.Dead, s.HeldDead} {
		for _, d := range dead {
			if !sampled(&d.Delivery.Message) || !made.one() {
				continue
			}
			span := o.start("dead_letter", "settle", &d.Delivery.Message, time.Now())
			span.SetAttributes(Attempts.Int(d.Delivery.Attempts))
			fail(span, string(d.Reason), d.Err)
			span.End()
		}
	}
	made.done()
}

func (o *observer) Changed(state relay.State, err error) {
	if o.next != nil {
		o.next.Changed(state, err)
	}
}

func (o *observer) start(operation, kind string, m *outbox.Message, at time.Time) trace.Span {
	place, _ := spanContext(inbox.LinkOf(m))
	_, span := o.tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), place), name(operation, m),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(at), trace.WithLinks(trace.Link{SpanContext: place}),
		trace.WithAttributes(spanAttributes(operation, kind, o.System, m)...))
	if o.Sending.Destination != "" {
		span.SetAttributes(Destination.String(o.Sending.Destination))
	}
	return span
}

// sampled reports whether the trace of a message is recorded. It is asked of every message.
func sampled(m *outbox.Message) bool {
	parent, _ := m.TraceParent()
	return parent.Sampled
}

// budget counts the spans of one call.
type budget struct {
	*observer
	n int
}

func (o *observer) budget() budget { return budget{o, 0} }

func (b *budget) one() bool {
	b.n++
	return b.n <= b.MaxSpans
}

func (b *budget) done() {
	if left := b.n - b.MaxSpans; left > 0 && b.Skipped != nil {
		b.Skipped(left)
	}
}

// outages remembers the messages whose broker or topic was unavailable. Otherwise an outage of an hour would make
// thousands of spans of one message.
type outages struct {
	mu  sync.Mutex
	ids map[outbox.ID]bool
}

const maxOutages = 10_000

// needsSpan reports whether an answer gets a span: the first of an outage, and every other answer.
func (a *outages) needsSpan(id outbox.ID, err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil || !outbox.IsUnavailable(err) && !outbox.IsTopicUnavailable(err) {
		delete(a.ids, id)
		return true
	}
	if a.ids[id] {
		return false
	}
	if a.ids == nil || len(a.ids) >= maxOutages {
		a.ids = make(map[outbox.ID]bool)
	}
	a.ids[id] = true
	return true
}
