//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package jsonl

import (
	"errors"
	"os"
)

// lock returns an error: two relays on one unlocked file would tear each other's lines.
func lock(*os.File) error {
	return errors.New("this system has no flock, so the file can't be kept from a second relay; write to standard output and redirect that")
}
