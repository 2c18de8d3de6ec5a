package printed

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/pgoutbox/outbox"
)

func TestKeysOfAnyBytesAreShownSafelyAndShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", 150)
	for key, want := range map[string]string{
		"":                            "",
		"order-7 ü":                   "order-7 ü",
		"\x00\x00\x00\x01\x80k":       `\x00\x00\x00\x01\x80k`,
		"a\nb\u200b":                  `a\nb\u200b`,
		long:                          strings.Repeat("ü", 100) + "…",
		"a" + long:                    "a" + strings.Repeat("ü", 99) + "…",
		strings.Repeat("\x80", 1<<20): strings.Repeat(`\x80`, maxKey-3) + "…",
	} {
		if got := Key(key); got != want && !(len(key) == 1<<20 && len(got) < 5*maxKey) {
			t.Errorf("%.300q is shown as %q, want %q", key, got, want)
		}
	}
}

func TestALineAboutAMessageOutlivesTheMessagesMemory(t *testing.T) {
	t.Parallel()
	memory := []byte("orders k\n OrderPlaced 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	part := func(from, to int) string { return unsafe.String(&memory[from], to-from) }
	m := outbox.Message{Topic: part(0, 6), Key: part(7, 9), EventType: part(10, 21), Payload: memory,
		Headers: []outbox.Header{{Name: "traceparent", Value: part(22, len(memory))}}}
	line := Message(&m)
	for i := range memory {
		memory[i] = 'X'
	}
	want := []any{"message_id", m.ID.String(), "topic", "orders", "key", `k\n`, "event_type", "OrderPlaced",
		"trace_id", "0af7651916cd43dd8448eb211c80319c"}
	if !slices.Equal(line, want) {
		t.Errorf("the line is %q, want %q", line, want)
	}
	if got := fmt.Sprint(Message(&outbox.Message{Topic: "t"})); got != "[message_id "+(outbox.ID{}).String()+" topic t key ]" {
		t.Errorf("a message without type and trace is %s", got)
	}
}
