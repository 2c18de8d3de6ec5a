package template_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/template"
)

func TestFieldsOfAMessageStandInTheText(t *testing.T) {
	t.Parallel()
	m := &outbox.Message{Topic: "orders", EventType: "created", AggregateType: "order", AggregateID: "7"}
	for text, want := range map[string]string{
		"":          "",
		"fixed":     "fixed",
		"{topic}":   "orders",
		"a.{topic}": "a.orders",
		"{topic}.b": "orders.b",
		"a}{key}":   "a}7", // the ordering key
		"{topic}{aggregate_type}-{aggregate_id}.{event_type}": "ordersorder-7.created",
	} {
		parsed, err := template.Parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := parsed.Expand(m); got != want || string(parsed.Append([]byte("x"), m)) != "x"+want {
			t.Errorf("%q became %q and %q, want %q", text, got, parsed.Append(nil, m), want)
		}
		if parsed.Constant() != (text == want) {
			t.Errorf("%q: constant %v", text, parsed.Constant())
		}
	}
	parsed, err := template.Parse("a.{topic}.{key}")
	if err != nil || parsed.With("x") != "a.x.x" {
		t.Errorf("%v, %v", parsed, err)
	}
}

func TestAFaultSaysWhereAndWhatMayStandThere(t *testing.T) {
	t.Parallel()
	for text, at := range map[string]string{"a.{topik}.b": "{topik}.b",
		"{topic": "{topic", "{": "{", "{{topic}}": "{{topic}}", "{topic}{key}": "{key}"} {
		parsed, err := template.Parse(text, "topic", "event_type")
		var fault *template.Fault
		if parsed != nil || !errors.As(err, &fault) || fault.At != at || !slices.Equal(fault.Expected, []string{"topic", "event_type"}) {
			t.Errorf("%q: %v, %v", text, parsed, err)
			continue
		}
		if want := "expected one of {topic}, {event_type} at \"" + at + "\""; err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
	}
}

func TestAFieldByItselfIsNotCopied(t *testing.T) {
	parsed, err := template.Parse("{topic}")
	if err != nil {
		t.Fatal(err)
	}
	m := &outbox.Message{Topic: "a topic that would not fit into a small buffer on the stack"}
	if n := testing.AllocsPerRun(100, func() { _ = parsed.Expand(m) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
