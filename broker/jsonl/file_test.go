package jsonl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pgoutbox/outbox"
)

// faulty is a file on a disk with room for so many bytes, and whose sync fails.
type faulty struct {
	*os.File
	room int
	sync error
}

func (f *faulty) Write(p []byte) (int, error) {
	n := min(len(p), f.room)
	f.room -= n
	n, err := f.File.Write(p[:n])
	if err == nil && n < len(p) {
		err = &os.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
	}
	return n, err
}

func (f *faulty) Sync() error { return errors.Join(f.sync, f.File.Sync()) }

func TestAFullDiskLeavesTheFileAsItWas(t *testing.T) {
	t.Parallel()
	testFault(t, "the disk is full", func(f *os.File) handle { return &faulty{File: f, room: 200} })
}

func TestAFailedSyncTakesTheLinesBack(t *testing.T) {
	t.Parallel()
	testFault(t, "input/output error", func(f *os.File) handle { return &faulty{File: f, room: 1 << 20, sync: syscall.EIO} })
}

func testFault(t *testing.T, text string, spoil func(*os.File) handle) {
	path := filepath.Join(t.TempDir(), "out.jsonl")
	b, err := Open(path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	first := []*outbox.Message{{ID: outbox.NewID(), Topic: "t", Key: "a"}}
	if errs := b.Publish(t.Context(), first); errs != nil {
		t.Fatal(errs)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	s := b.sink.(*file)
	s.f = spoil(s.f.(*os.File))
	var batch []*outbox.Message
	for range 5 {
		batch = append(batch, &outbox.Message{ID: outbox.NewID(), Topic: "t", Key: "a"})
	}
	errs := b.Publish(t.Context(), batch)
	if len(errs) != 5 || !outbox.IsUnavailable(errs[0]) || !strings.Contains(errs[0].Error(), text) ||
		!errors.Is(errs[1], outbox.ErrSkipped) {
		t.Errorf("outcomes %v", errs)
	}
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(after) != string(before) {
		t.Errorf("the file was %q and is %q", before, after)
	}
	// The faulty handle was given up with the fault.
	if errs := b.Publish(t.Context(), batch); errs != nil {
		t.Error(errs)
	}
}

// A probe has made the file, logrotate renames it, and another program makes one of the same name.
func TestAFileOfAnotherProgramIsNotRemoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out.jsonl")
	b, err := Open(path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(b.Ping(t.Context()), os.Rename(path, path+".1"), os.WriteFile(path, []byte("theirs\n"), 0o600), b.Close())
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "theirs\n" {
		t.Errorf("%q, %v", text, err)
	}
}
