package main

import (
	"os"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
)

// The relay's process is this program's.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "relay" {
		main()
		return
	}
	servers.Main(m)
}

// Five thousand keys were too many to be due, loaded or listed at once.
func TestOtherKeysFlowBesideHeldOnesAndAllArriveInOrder(t *testing.T) {
	for _, kind := range []string{"delayed", "missing", "paused", "keyless"} {
		t.Run(kind, func(t *testing.T) {
			servers.Long(t)
			var out strings.Builder
			if err := held(t.Context(), []string{"-held", "5000", "-kinds", kind, "-rate", "100", "-for", "1s"}, &out); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			t.Log(out.String())
		})
	}
}
