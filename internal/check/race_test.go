//go:build race

package check_test

// scale divides the amount of work where the race detector makes each step
// many times slower.
const scale = 20
