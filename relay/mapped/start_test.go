package mapped

import (
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
)

// A relay that could mark no row, or would find none that waits, doesn't start. With an offset it needs no mark.
func TestNoRelayStartsOnATableWhoseRowsCanNeverWait(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for change, reason := range map[string]string{
		"ALTER status SET DEFAULT 'done'":           "has the default 'done'",
		"ALTER status TYPE varchar(3)":              "too short",
		"ADD CHECK (status IN ('new', 'taken'))":    "can't be 'done'",
		"ADD CHECK (status NOT IN ('new', 'open'))": "can't be 'new'",
	} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Exec("ALTER TABLE events " + change)
			for name, open := range strategies() {
				source := opened(t)(open(db.Config(), Config{Name: "one"}))
				marks := name != "xmin" && name != "serial"
				s, err := source.Acquire(t.Context())
				if marks && (!outbox.IsPermanent(err) || !strings.Contains(err.Error(), reason)) || !marks && err != nil {
					t.Errorf("%s: got %v, want %q", name, err, reason)
				}
				if err == nil {
					_ = s.Close(t.Context())
				}
			}
		})
	}
}
