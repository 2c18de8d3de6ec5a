// Package await lets tests wait for what must come, as long as the machine needs. CONTRIBUTING.md has the rules.
package await

import (
	"context"
	"testing"
	"time"
)

const (
	// Patience is for settings that a test has to give and doesn't want to be exceeded.
	Patience = 2 * time.Minute

	pause = 5 * time.Millisecond
	looks = 1000
	// farewell is what Context leaves a test of its package's time.
	farewell = 20 * time.Second
)

// Until returns when condition returns true. It ends the test after two minutes and a thousand looks: a machine that
// stops, or is busy with other things, gives fewer looks. what names the condition.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	UntilElse(t, condition, func() string { return what })
}

// UntilElse is Until for a condition that missing describes when it has been waited for in vain.
func UntilElse(t testing.TB, condition func() bool, missing func() string) {
	t.Helper()
	began := time.Now()
	for n := 0; n < looks || time.Since(began) < Patience; n++ {
		if condition() {
			return
		}
		time.Sleep(pause)
	}
	t.Fatalf("waited in vain for: %s", missing())
}

// Context ends with t, or shortly before the time that go test gives the package, so that a test can tell what it has
// waited for.
func Context(t testing.TB) context.Context {
	limited, ok := t.(interface{ Deadline() (time.Time, bool) })
	if !ok {
		return t.Context()
	}
	at, ok := limited.Deadline()
	if !ok {
		return t.Context()
	}
	ctx, cancel := context.WithDeadline(t.Context(), at.Add(-farewell))
	t.Cleanup(cancel)
	return ctx
}

// Expiry is a limit that the test waits for to be exceeded. Nothing in the test may need it to be kept: on a busy
// machine a call that was to succeed exceeds it too.
func Expiry(d time.Duration) time.Duration { return d }
