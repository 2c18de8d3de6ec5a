package console

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/proof/rig"
)

// TestPictures takes the pictures of README and docs, of a system that has flowed for a while before its orders fail:
// OUTBOX_CONSOLE_PICTURES names the folder, OUTBOX_CONSOLE_PAST is for how many seconds it flows, 420 by default.
func TestPictures(t *testing.T) {
	if os.Getenv("OUTBOX_CONSOLE_PICTURES") == "" {
		t.Skip("OUTBOX_CONSOLE_PICTURES names no folder")
	}
	past, err := strconv.Atoi(os.Getenv("OUTBOX_CONSOLE_PAST"))
	if err != nil {
		past = 420
	}
	w := setup(t, sizes{messages: 20_000, dead: 120, held: 12, destinations: 11, calm: true})
	w.write(t.Context())
	for _, seconds := range []int{past, past / 3} { // the charts need a past, and the failure one, too
		if err := rig.Pause(t.Context(), time.Duration(seconds)*time.Second); err != nil {
			t.Fatal(err)
		}
		w.missing.Store(true)
	}
	b := open(t, operator)
	for _, theme := range []string{"light", "dark"} {
		b.as(1280, 900, theme)
		for name, path := range map[string]string{"": "", "destination-": "destination?name=orders-kafka", "dead-": "dead"} {
			b.visit(w.base + path)
			b.picture("console-" + name + theme)
		}
		b.as(360, 780, theme)
		b.visit(w.base)
		b.picture("console-phone-" + theme)
	}
}
