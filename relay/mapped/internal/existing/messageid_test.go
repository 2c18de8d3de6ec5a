package existing

import (
	"crypto/sha1"
	"fmt"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/mapping"
)

func TestIDsOfMessagesComeFromTableAndRow(t *testing.T) {
	t.Parallel()
	tab := &Table{Info: &mapping.Table{Schema: "public", Name: "outbox_messages"}}
	for _, id := range []string{"7", "", "not-a-uuid-but-thirty-six-letters-yes", strings.Repeat("x", 300)} {
		want := sha1.Sum(fmt.Appendf(nil, "public\x00outbox_messages\x00%s", id))
		want[6], want[8] = want[6]&0x0f|0x50, want[8]&0x3f|0x80
		if got, made := tab.messageID(id); !made || got != outbox.ID(want[:16]) {
			t.Errorf("%q: %s", id, got)
		}
	}
	const uuid = "0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f"
	if got, made := tab.messageID(uuid); made || got.String() != uuid {
		t.Errorf("a UUID became %s", got)
	}
}

// BenchmarkMessageID is what a row costs that has a number for an id.
func BenchmarkMessageID(b *testing.B) {
	tab := &Table{Info: &mapping.Table{Schema: "public", Name: "outbox_messages"}}
	for b.Loop() {
		tab.messageID("1234567")
	}
}
