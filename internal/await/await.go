// Package await lets tests wait for what must come, as long as the machine needs. CONTRIBUTING.md has the rules.
package await

import (
	"context"
	"testing"
	"time"
)

const (
	// Patience is for timeouts that a test has to give and that must not be exceeded.
	Patience = 2 * time.Minute

	// Soon is the limit for what takes milliseconds and can fail to come only by a mistake in the code, where a mutant
	// is to be caught without waiting for Patience.
	Soon = 30 * time.Second

	pause = 5 * time.Millisecond
	looks = 1000
	// farewell is how much of its package's time Deadline leaves a test to report.
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
	if !within(Patience, condition) {
		t.Fatalf("waited in vain for: %s", missing())
	}
}

// UntilSoon is Until with the limit [Soon].
func UntilSoon(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if !within(Soon, condition) {
		t.Fatalf("waited in vain for: %s", what)
	}
}

// within looks for as long as limit, and a thousand times at least.
func within(limit time.Duration, condition func() bool) bool {
	began := time.Now()
	for n := 0; n < looks || time.Since(began) < limit; n++ {
		if condition() {
			return true
		}
		time.Sleep(pause)
	}
	return false
}

// Context ends with t, before its cleanups, or at its [Deadline].
func Context(t testing.TB) context.Context {
	at := Deadline(t)
	if at.IsZero() {
		return t.Context()
	}
	ctx, cancel := context.WithDeadline(t.Context(), at)
	t.Cleanup(cancel)
	return ctx
}

// Deadline is shortly before the end of the time that go test gives the package, so that a test can tell what it has
// waited for; zero without such an end.
func Deadline(t testing.TB) time.Time {
	if limited, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if at, ok := limited.Deadline(); ok {
			return at.Add(-farewell)
		}
	}
	return time.Time{}
}

// Expiry is a limit that the test waits for to be exceeded. Nothing in the test may need it to be kept: on a busy
// machine a call that was to succeed exceeds it too.
func Expiry(d time.Duration) time.Duration { return d }
