package jsonl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// file is a sink that has exactly the accepted lines after every write.
type file struct {
	path   string
	logger *slog.Logger

	f       handle // nil when it has to be opened
	created bool   // open has made the file, and nothing was written to it: a probe leaves none behind
}

// ErrLocked is the error of a file that another Broker has open. That one can write to it.
var ErrLocked = errors.New("another relay is writing to it; stop that one, or give each relay a file of its own")

// handle is an *os.File.
type handle interface {
	Write(p []byte) (int, error)
	Sync() error
	Truncate(size int64) error
	Stat() (fs.FileInfo, error)
	Close() error
}

// open opens, locks and repairs the file.
func (s *file) open() (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("jsonl: open %s: %w", s.path, err)
		}
	}()
	_, err = os.Stat(s.path)
	created := errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return plain(err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return plain(err)
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is not a regular file; to write to a pipe or a terminal, write to standard output and redirect that")
	}
	if err := lock(f); err != nil {
		return err
	}
	if err := s.repair(f, info.Size()); err != nil {
		return err
	}
	if created {
		if err := syncDir(filepath.Dir(s.path)); err != nil {
			return plain(err)
		}
	}
	s.f, s.created = f, created
	return nil
}

// write appends lines and waits until they are on disk, or leaves the file unchanged.
func (s *file) write(lines []byte) (int, error) {
	if err := s.ready(); err != nil {
		return 0, err
	}
	info, err := s.f.Stat()
	if err != nil {
		return 0, s.fault("write", err)
	}
	n, err := s.f.Write(lines)
	if err == nil && n < len(lines) {
		err = io.ErrShortWrite
	}
	if err == nil {
		// After a failed sync the system may have dropped the data, and a second sync may succeed all the same. So the
		// lines are removed and written again.
		err = s.f.Sync()
	}
	if err == nil {
		s.created = false
		return n, nil
	}
	fault := s.fault("write", err)
	if err := s.f.Truncate(info.Size()); err != nil {
		// Opening the file again repairs a torn line. Complete lines stay, and are repeated.
		fault = errors.Join(fault, s.fault("take back", err))
	}
	s.f.Close()
	s.f = nil
	return 0, fault
}

// ready opens the file again if a fault has closed it, or if path now is another file: writes to a removed file are
// lost.
func (s *file) ready() error {
	if s.f != nil {
		if s.there() {
			return nil
		}
		s.logger.Info("file was renamed or removed; opening a new one", "path", s.path)
		s.f.Close()
		s.f = nil
	}
	return s.open()
}

// there reports whether the open file is still at its path.
func (s *file) there() bool {
	at, err := os.Stat(s.path)
	if err != nil {
		return false
	}
	own, err := s.f.Stat()
	return err == nil && os.SameFile(at, own)
}

func (s *file) close() error {
	if s.f == nil {
		return nil
	}
	if s.created && s.there() {
		os.Remove(s.path) // still locked, and empty; nothing is lost if this fails
	}
	err := s.f.Close()
	s.f = nil
	if err != nil {
		return s.fault("close", err)
	}
	return nil
}

func (s *file) fault(verb string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("jsonl: %s %s: the disk is full: %w; make room and delivery goes on", verb, s.path, plain(err))
	}
	if errors.Is(err, syscall.EFBIG) {
		return fmt.Errorf("jsonl: %s %s: the file is as large as it may be: %w; rename it, and delivery goes on with a new one, or "+
			"raise the limit (ulimit -f, the file system's)", verb, s.path, plain(err))
	}
	return fmt.Errorf("jsonl: %s %s: %w", verb, s.path, plain(err))
}

// plain removes the path from an error, whose text names it already.
func plain(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// repair makes a file whose end was torn by a crash end with a complete line. A line that lacks only its line break
// gets it. The beginning of one of our lines is removed: its message was not accepted and comes again. Anything else
// was not written by this package and is not touched.
func (s *file) repair(f *os.File, size int64) error {
	tail, err := lastLine(f, size)
	if err != nil || len(tail) == 0 {
		return err
	}
	ours := strings.HasPrefix(beginning, string(tail)) || bytes.HasPrefix(tail, []byte(beginning))
	switch {
	case json.Valid(tail):
		if _, err := f.Write([]byte("\n")); err != nil {
			return s.fault("end the last line of", err)
		}
		s.logger.Warn("ended a line that a crash had left open", "path", s.path)
	case ours || len(bytes.Trim(tail, "\x00")) == 0: // a power failure can leave zeros
		if err := f.Truncate(size - int64(len(tail))); err != nil {
			return s.fault("remove the torn last line of", err)
		}
		s.logger.Warn("removed a line that a crash had torn", "path", s.path, "bytes", len(tail))
	default:
		return errors.New("its last line is neither complete nor one of this program; end it with a line break if lines may follow it")
	}
	if err := f.Sync(); err != nil {
		return s.fault("sync", err)
	}
	return nil
}

// lastLine returns the text after the last line break.
func lastLine(f *os.File, size int64) ([]byte, error) {
	const step = 64 << 10
	var tail []byte
	for end := size; end > 0; {
		start := max(0, end-step)
		piece := make([]byte, end-start)
		if _, err := f.ReadAt(piece, start); err != nil {
			return nil, plain(err)
		}
		if i := bytes.LastIndexByte(piece, '\n'); i >= 0 {
			return append(piece[i+1:], tail...), nil
		}
		tail = append(piece, tail...)
		end = start
	}
	return tail, nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
