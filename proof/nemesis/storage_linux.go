package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// storage is an in-memory file system, small enough to be filled up.
type storage struct{ path string }

const storageSize = "512m"

// mountStorage mounts one with folders in it. It returns nil for a user who isn't root: then disks don't get full.
func mountStorage(path string, folders ...string) (*storage, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, err
	}
	err := syscall.Mount("outbox-nemesis", path, "tmpfs", 0, "size="+storageSize)
	switch {
	case errors.Is(err, syscall.EPERM):
		return nil, nil // root in a container without the right to mount
	case err != nil:
		return nil, fmt.Errorf("mount a small file system at %s: %w", path, err)
	}
	s := &storage{path}
	for _, name := range folders {
		if err := os.Mkdir(s.folder(name), 0o755); err != nil {
			return nil, errors.Join(err, s.unmount())
		}
	}
	return s, nil
}

// folder returns the folder of a server; "" without a file system of its own.
func (s *storage) folder(name string) string {
	if s == nil {
		return ""
	}
	return filepath.Join(s.path, name)
}

func (s *storage) filler() string { return filepath.Join(s.path, "filler") }

// fill leaves no byte free.
func (s *storage) fill() error {
	f, err := os.Create(s.filler())
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for size := len(block); size >= 4096; {
		if _, err := f.Write(block[:size]); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				return errors.Join(err, f.Close())
			}
			size /= 2
		}
	}
	return f.Close()
}

// free removes what fill wrote.
func (s *storage) free() error {
	if s == nil {
		return nil
	}
	if err := os.Remove(s.filler()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (s *storage) unmount() error {
	if s == nil {
		return nil
	}
	if err := syscall.Unmount(s.path, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", s.path, err)
	}
	return nil
}
