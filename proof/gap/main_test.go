package main

import (
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
)

func TestMain(m *testing.M) { servers.Main(m) }

func TestMessagesComeAgainWhateverHappensToTheOwner(t *testing.T) {
	for _, strategy := range []string{"snapshot", "replication"} {
		t.Run(strategy, func(t *testing.T) {
			servers.Long(t)
			var out strings.Builder
			args := []string{"-faults", "kill,stop,freeze,session", "-rounds", "2", "-rate", "100", "-strategy", strategy}
			if err := gap(t.Context(), args, &out); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			t.Log(out.String())
		})
	}
}
