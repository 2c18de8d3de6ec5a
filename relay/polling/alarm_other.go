//go:build !linux

package polling

import (
	"errors"
	"time"
)

func exactly(func()) (set func(time.Duration), end func(), err error) {
	return nil, nil, errors.ErrUnsupported
}
