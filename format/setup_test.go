package format_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
)

var update = flag.Bool("update", false, "write the golden files anew")

// order is a message with everything.
func order() *outbox.Message {
	return &outbox.Message{
		ID:            id("0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f"),
		Topic:         "orders",
		Key:           "o-1",
		AggregateType: "Order",
		AggregateID:   "1 €",
		EventType:     "OrderCreated",
		Payload:       []byte(`{"id": 1, "note": "say \"hi\""}`),
		ContentType:   "application/json",
		Headers: []outbox.Header{
			{Name: "tenant-id", Value: "acme \"50%\""},
			{Name: "traceparent", Value: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
		},
		CreatedAt: time.Date(2026, 11, 21, 3, 4, 5, 678000, time.FixedZone("", 3600)),
		Position:  4711,
	}
}

func id(text string) outbox.ID {
	parsed, err := outbox.ParseID(text)
	if err != nil {
		panic(err)
	}
	return parsed
}

func with(change func(*outbox.Message)) *outbox.Message {
	m := order()
	change(m)
	return m
}

func bind(t testing.TB, f format.Format, b format.Binding) format.Encoder {
	t.Helper()
	encoder, err := f.Bind(b)
	if err != nil {
		t.Fatal(err)
	}
	return encoder
}

func encode(t testing.TB, f format.Format, b format.Binding, m *outbox.Message) *format.Record {
	t.Helper()
	var r format.Record
	if err := bind(t, f, b).Encode(&r, m); err != nil {
		t.Fatal(err)
	}
	return &r
}

// show writes a record for people.
func show(r *format.Record) string {
	var b strings.Builder
	line := func(name string, value []byte) {
		if value == nil {
			fmt.Fprintf(&b, "%s: null\n", name)
			return
		}
		fmt.Fprintf(&b, "%s: %q\n", name, value)
	}
	line("key", r.Key)
	fmt.Fprintf(&b, "content type: %q\n", r.ContentType)
	for _, h := range r.Headers {
		line("header "+h.Name, h.Value)
	}
	if r.Value == nil {
		b.WriteString("value: null\n")
	} else {
		fmt.Fprintf(&b, "value:\n%s\n", r.Value)
	}
	return b.String()
}

// golden compares with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; go test ./format -update writes it anew\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}
