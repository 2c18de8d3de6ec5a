//go:build !unix

package versus

import "time"

// ProcessorTime is not known.
func ProcessorTime() time.Duration { return 0 }
