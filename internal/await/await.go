// Package await lets tests wait.
package await

import (
	"testing"
	"time"
)

// Patience bounds what a test waits for. No test asserts that something is faster.
const Patience = 2 * time.Minute

// Until returns when condition returns true, and ends the test if that takes too long. what names the condition.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}
