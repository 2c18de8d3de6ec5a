package oteloutbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

func TestASentMessageHasASpanByTheConventions(t *testing.T) {
	t.Parallel()
	tracer, _, recorder := recording(t)
	m := withTrace(recorded, "vendor=1")
	before := time.Now()
	tracer.Observer(Sending{System: "kafka", Destination: "events"}, nil).Published([]*outbox.Message{m}, nil, nil, time.Second)
	ended := recorder.Ended()
	if len(ended) != 1 {
		t.Fatalf("%d spans", len(ended))
	}
	span, got := ended[0], attributes(ended[0])
	for key, want := range map[string]string{
		"messaging.system": "kafka", "messaging.operation.name": "send", "messaging.operation.type": "send",
		"messaging.destination.name": "orders", "messaging.message.id": m.ID.String(), "messaging.message.body.size": "5",
		"messaging.pgoutbox.event_type": "OrderPlaced", "messaging.pgoutbox.destination": "events",
	} {
		for name, value := range got {
			if string(name) == key && value == want {
				want = ""
			}
		}
		if want != "" {
			t.Errorf("%s is not %q in %v", key, want, got)
		}
	}
	parent, links := span.Parent(), span.Links()
	if span.Name() != "send orders" || span.SpanKind() != trace.SpanKindClient || parent.SpanID().String() != someSpan ||
		span.SpanContext().TraceID().String() != someTrace || parent.TraceState().String() != "vendor=1" ||
		span.Status().Code != codes.Unset || len(links) != 1 || !links[0].SpanContext.Equal(parent) {
		t.Errorf("the span is %q, kind %v, of %v, with links to %v", span.Name(), span.SpanKind(), parent, links)
	}
	if took := span.EndTime().Sub(span.StartTime()); took != time.Second || span.EndTime().Before(before) {
		t.Errorf("the span has %v, and ended at %v", took, span.EndTime())
	}
}

func TestOnlyASampledTraceHasSpansOfTheRelay(t *testing.T) {
	t.Parallel()
	tracer, _, recorder := recording(t)
	o := tracer.Observer(Sending{}, nil)
	for _, parent := range []string{
		"", "00", "00-" + someTrace + "-" + someSpan + "-00", recorded + "x", strings.Repeat(recorded, 500),
		"00-" + strings.Repeat("0", 32) + "-" + someSpan + "-01",
		strings.ToUpper(recorded), "\x00\xff" + recorded[2:], strings.Repeat("\xff", 55),
	} {
		m := withTrace(parent, "a=b")
		o.Published([]*outbox.Message{m}, []error{errors.New("no")}, nil, time.Second)
		o.Settled(&relay.Settlement{Dead: []relay.Dead{{Delivery: &relay.Delivery{Message: *m}, Reason: relay.ReasonRefused}}})
	}
	o.Published([]*outbox.Message{{ID: outbox.NewID(), Topic: "t"}}, nil, nil, time.Second)
	if spans := recorder.Ended(); len(spans) != 0 {
		t.Errorf("there are spans: %q", names(spans))
	}
	for _, state := range []string{strings.Repeat("a=b,", 5000), "no state", "\xff\n", strings.Repeat("k", 30_000) + "=v"} {
		o.Published([]*outbox.Message{withTrace(recorded, state)}, nil, nil, time.Second)
	}
	for _, span := range recorder.Ended() {
		if got := span.SpanContext().TraceState().String(); got != "" {
			t.Errorf("a state that breaks the rules went on: %.100q", got)
		}
	}
	if n := len(recorder.Ended()); n != 4 {
		t.Errorf("%d spans of 4 messages whose state breaks the rules", n)
	}
}

func TestACallHasABoundedNumberOfSpans(t *testing.T) {
	t.Parallel()
	tracer, _, recorder := recording(t)
	left, batch := 0, make([]*outbox.Message, 1000)
	o := tracer.Observer(Sending{Skipped: func(n int) { left += n }}, nil)
	dead := &relay.Settlement{}
	for i := range batch {
		batch[i] = withTrace(recorded, "")
		dead.Dead = append(dead.Dead, relay.Dead{Delivery: &relay.Delivery{Message: *batch[i]}, Reason: relay.ReasonRefused})
	}
	o.Published(batch, nil, nil, time.Second)
	if n := len(recorder.Ended()); n != 100 || left != 900 {
		t.Errorf("1000 messages have %d spans, and %d were left out", n, left)
	}
	o.Settled(dead)
	if n := len(recorder.Ended()); n != 200 || left != 1800 {
		t.Errorf("with 1000 dead letters there are %d spans, and %d were left out", n, left)
	}
	for _, m := range batch[5:] {
		m.Headers = nil
	}
	o.Published(batch, nil, nil, time.Second)
	if n := len(recorder.Ended()); n != 205 || left != 1800 {
		t.Errorf("5 of 1000 messages made %d spans, and %d were left out", n-200, left)
	}
}

func TestEachAttemptHasASpanAndAnOutageHasOne(t *testing.T) {
	t.Parallel()
	tracer, _, recorder := recording(t)
	o := tracer.Observer(Sending{}, nil)
	m, behind := withTrace(recorded, ""), withTrace(recorded, "")
	answer := func(err error) {
		o.Published([]*outbox.Message{m, behind}, []error{err, outbox.ErrSkipped}, nil, time.Second)
	}
	answer(errors.New("busy"))
	answer(errors.New("busy"))
	for range 50 {
		answer(outbox.Unavailable(errors.New("no connection")))
	}
	for range 50 {
		answer(outbox.TopicUnavailable(errors.New("no topic")))
	}
	answer(errors.New("busy"))
	answer(outbox.Unavailable(errors.New("no connection")))
	answer(outbox.Permanent(errors.New("too large")))
	o.Settled(&relay.Settlement{HeldDead: []relay.Dead{{Delivery: &relay.Delivery{Message: *m, Attempts: 3}, Reason: relay.ReasonRefused,
		Err: errors.New("too large")}}})
	o.Published([]*outbox.Message{m}, nil, nil, time.Second)
	var got []string
	for _, span := range recorder.Ended() {
		status := span.Status()
		a := attributes(span)
		got = append(got, strings.TrimSpace(fmt.Sprintln(span.Name(), a["error.type"], status.Description, a[Attempts])))
		if (status.Code == codes.Error) != (a["error.type"] != "") {
			t.Errorf("%q has status %v", got[len(got)-1], status)
		}
	}
	want := []string{
		"send orders error busy", "send orders error busy", "send orders unavailable no connection", "send orders error busy",
		"send orders unavailable no connection", "send orders refused too large", "dead_letter orders refused too large 3", "send orders",
	}
	if !slices.Equal(got, want) {
		t.Errorf("spans:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAnOutageOfAnyLengthIsRememberedWithinABound(t *testing.T) {
	t.Parallel()
	var a outages
	down := outbox.Unavailable(errors.New("down"))
	for range 3 * maxOutages {
		a.needsSpan(outbox.NewID(), down)
	}
	if len(a.ids) > maxOutages {
		t.Errorf("%d messages are remembered", len(a.ids))
	}
}

func TestForeignTextIsBoundedAndCanBeEncoded(t *testing.T) {
	t.Parallel()
	tracer, _, recorder := recording(t)
	m := withTrace(recorded, "")
	m.Topic, m.EventType = "t\xff\x00"+strings.Repeat("x", 1<<20), strings.Repeat("\xfe", 1<<20)
	tracer.Observer(Sending{}, nil).Published([]*outbox.Message{m}, []error{errors.New(strings.Repeat("\xff", 1<<20))}, nil, time.Second)
	span := recorder.Ended()[0]
	texts := []string{span.Name(), span.Status().Description}
	for _, value := range attributes(span) {
		texts = append(texts, value)
	}
	for _, text := range texts {
		if !utf8.ValidString(text) || len(text) > 4*maxStatus {
			t.Errorf("a text of %d bytes: %.50q", len(text), text)
		}
	}
}

// told is an observer that counts.
type told struct{ published, settled, changed int }

func (o *told) Published([]*outbox.Message, []error, []time.Duration, time.Duration) { o.published++ }
func (o *told) Settled(*relay.Settlement)                                            { o.settled++ }
func (o *told) Changed(relay.State, error)                                           { o.changed++ }

func TestTheNextObserverIsToldEverything(t *testing.T) {
	t.Parallel()
	tracer, _, _ := recording(t)
	var next told
	o := tracer.Observer(Sending{}, &next)
	o.Published(nil, nil, nil, 0)
	o.Settled(&relay.Settlement{})
	o.Changed(relay.StateFlowing, nil)
	if next != (told{1, 1, 1}) {
		t.Errorf("told %+v", next)
	}
}

// What tracing costs a relay, by the share of messages whose trace is sampled.
func BenchmarkObserver(b *testing.B) {
	for _, sampled := range []int{0, 10, 1000} {
		b.Run(fmt.Sprintf("%d of 1000", sampled), func(b *testing.B) {
			tracer, _, recorder := recording(b)
			o := tracer.Observer(Sending{System: "kafka"}, nil)
			batch := make([]*outbox.Message, 1000)
			for i := range batch {
				flags := "-00"
				if i < sampled {
					flags = "-01"
				}
				batch[i] = withTrace(recorded[:52]+flags, "")
			}
			b.ReportAllocs()
			for b.Loop() {
				o.Published(batch, nil, nil, time.Millisecond)
				recorder.Reset()
			}
		})
	}
}
