package findings

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Readable returns the reason why a file can't be read; the path "" is no file, and no fault.
func Readable(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err == nil {
		_ = f.Close()
	}
	return Unreadable(path, err)
}

// Unreadable returns the fault of a file that can't be read because of err, nil if that is nil.
func Unreadable(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("can't read %q: %w", path, Cause(err))
}

// Cause strips the operation and the path, which the message says better.
func Cause(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}
