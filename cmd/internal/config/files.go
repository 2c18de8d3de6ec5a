package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// readable tells why a file can't be read; the path "" is none.
func readable(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err == nil {
		_ = f.Close()
	}
	return unreadable(path, err)
}

func unreadable(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("can't read %q: %w", path, cause(err))
}

// cause strips the operation and the path, which the message says better.
func cause(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}
