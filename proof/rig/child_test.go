package rig

import (
	"slices"
	"testing"
)

func TestProcessesAreToldNothingOfThePersonsOwnOutbox(t *testing.T) {
	t.Parallel()
	got := environment([]string{"PATH=/bin", "OUTBOX_DATABASE_URL=postgres://live", "DATABASE_URL=postgres://live", "HOME=/root"})
	if !slices.Equal(got, []string{"PATH=/bin", "HOME=/root"}) {
		t.Errorf("%q", got)
	}
}
