// Package seed gives tests random numbers that can be repeated.
package seed

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
)

const env = "OUTBOX_TEST_SEED"

var (
	// seed is that of all tests of this binary.
	seed = sync.OnceValues(func() (uint64, error) {
		if given := os.Getenv(env); given != "" {
			n, err := strconv.ParseUint(given, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", env, err)
			}
			return n, nil
		}
		return rand.Uint64(), nil
	})
	mu    sync.Mutex
	taken = make(map[testing.TB]uint64) // by tests that run, guarded by mu
)

// Rand returns a generator for one goroutine of a test, the next one of its. The test tells the seed when it fails,
// which OUTBOX_TEST_SEED gives it back.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	from, err := seed()
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if taken[t]++; taken[t] == 1 {
		t.Logf("the same chance again: %s=%d", env, from)
		t.Cleanup(func() {
			mu.Lock()
			defer mu.Unlock()
			delete(taken, t)
		})
	}
	return rand.New(rand.NewPCG(from, taken[t]))
}
