//go:build !unix

package versus

import "time"

// processorTime is not known.
func processorTime() time.Duration { return 0 }
