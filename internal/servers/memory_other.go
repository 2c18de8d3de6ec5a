//go:build !linux

package servers

// memory is [os.TempDir]'s place elsewhere.
func memory() string { return "" }
