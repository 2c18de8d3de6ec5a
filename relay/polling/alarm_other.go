//go:build !linux

package polling

import (
	"errors"
	"time"
)

func exactTimer(func()) (set func(time.Duration), end func(), err error) {
	return nil, nil, errors.ErrUnsupported
}
