//go:build unix

package versus

import (
	"syscall"
	"time"
)

// ProcessorTime is what this process has used, 0 if that is not known.
func ProcessorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
