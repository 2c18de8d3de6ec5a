package outbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
)

func TestATraceParentIsReadByTheRulesOfW3C(t *testing.T) {
	t.Parallel()
	const trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	sampled := &outbox.TraceParent{TraceID: trace, SpanID: span, Sampled: true}
	other := &outbox.TraceParent{TraceID: trace, SpanID: span}
	for text, want := range map[string]*outbox.TraceParent{
		"00-" + trace + "-" + span + "-01":                      sampled,
		"00-" + trace + "-" + span + "-03":                      sampled,
		"00-" + trace + "-" + span + "-0b":                      sampled,
		"cc-" + trace + "-" + span + "-01-what the future adds": sampled,
		"00-" + trace + "-" + span + "-00":                      other,
		"00-" + trace + "-" + span + "-0a":                      other,
		"":                                                      nil,
		"00-" + trace + "-" + span + "-01-more":                 nil,
		"cc-" + trace + "-" + span + "-01more":                  nil,
		"ff-" + trace + "-" + span + "-01":                      nil,
		"00-" + strings.Repeat("0", 32) + "-" + span + "-01":    nil,
		"00-" + trace + "-" + strings.Repeat("0", 16) + "-01":   nil,
		"00-" + strings.ToUpper(trace) + "-" + span + "-01":     nil,
		"00-" + trace[:31] + "\"-" + span + "-01":               nil,
		"00-" + trace[:31] + "-" + span + "-01":                 nil,
		"00-" + trace + "-" + span + "-0g":                      nil,
		"zz-" + trace + "-" + span + "-01":                      nil,
		"00_" + trace + "-" + span + "-01":                      nil,
		strings.Repeat("00-"+trace+"-"+span+"-01,", 10_000):     nil,
		strings.Repeat("\x00\xff", 1<<20):                       nil,
	} {
		m := outbox.Message{Headers: []outbox.Header{{Name: "a", Value: "b"}, {Name: "traceparent", Value: text}}}
		got, ok := m.TraceParent()
		if ok != (want != nil) || ok && got != *want || !ok && got != (outbox.TraceParent{}) {
			t.Errorf("%.80q is %+v, %v; want %+v", text, got, ok, want)
		}
	}
	var m outbox.Message
	if _, ok := m.TraceParent(); ok {
		t.Error("a message without headers has a trace")
	}
}

// creations is a Trace that remembers.
type creations struct {
	asked []string
	ended []error
}

func (c *creations) trace(_ context.Context, m *outbox.Message) (string, string, func(error)) {
	name := "all"
	if m != nil {
		name = m.Topic + " " + m.ID.String()
	}
	c.asked = append(c.asked, name)
	return "00-" + name, "", func(err error) { c.ended = append(c.ended, err) }
}

func TestEachMessageHasASpanUntilThereAreMany(t *testing.T) {
	t.Parallel()
	conn := connect(t, database(t))
	seen := &creations{}
	w, err := outbox.NewWriter(outbox.WriterConfig{Trace: seen.trace})
	if err != nil {
		t.Fatal(err)
	}
	own := []outbox.Header{{Name: "traceparent", Value: "mine"}}
	many := slices.Repeat([]outbox.Message{{Topic: "m"}}, 101)
	var ids []outbox.ID
	inTx(t, conn, func(tx pgx.Tx) (err error) {
		if ids, err = w.Write(t.Context(), tx, outbox.Message{Topic: "a"}, outbox.Message{Topic: "b", Headers: own},
			outbox.Message{Topic: "c"}); err != nil {
			return err
		}
		_, err = w.Write(t.Context(), tx, many...)
		return err
	})
	want := []string{"a " + ids[0].String(), "c " + ids[2].String(), "all"}
	if !slices.Equal(seen.asked, want) || !slices.Equal(seen.ended, []error{nil, nil, nil}) {
		t.Errorf("asked about %q, ended %v; want %q", seen.asked, seen.ended, want)
	}
	for i, m := range stored(t, conn) {
		got, _ := m.Header("traceparent")
		switch {
		case i == 1 && got != "mine", i == 0 && got != "00-"+want[0], i == 2 && got != "00-"+want[1], i > 2 && got != "00-all":
			t.Errorf("message %d has traceparent %q", i, got)
		}
	}
}

func TestASpanEndsWithTheErrorOfTheWrite(t *testing.T) {
	t.Parallel()
	conn := connect(t, database(t))
	seen := &creations{}
	w, err := outbox.NewWriter(outbox.WriterConfig{Trace: seen.trace})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(t.Context(), nil); err == nil || len(seen.asked) != 0 {
		t.Fatal("a write without a transaction has a span")
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(t.Context(), tx, outbox.Message{}); err == nil || len(seen.asked) != 0 {
		t.Errorf("an invalid message has a span: %v", seen.asked)
	}
	m := outbox.Message{Topic: "t"}
	write := func(context.Context, pgx.Tx) error { _, err := w.Write(t.Context(), tx, m); return err }
	copyIn := func(context.Context, pgx.Tx) error {
		_, err := w.Copy(t.Context(), tx, each([]outbox.Message{m}))
		return err
	}
	emit := func(context.Context, pgx.Tx) error { _, err := w.Emit(t.Context(), tx, m); return err }
	for i, f := range []func(context.Context, pgx.Tx) error{write, copyIn, emit} {
		if err := f(t.Context(), tx); err == nil {
			t.Fatalf("%d: no error", i)
		}
		if len(seen.ended) != i+1 || !errors.Is(seen.ended[i], pgx.ErrTxClosed) {
			t.Errorf("%d: the spans ended with %v", i, seen.ended)
		}
	}
}
