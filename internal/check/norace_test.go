//go:build !race

package check_test

const scale = 1
