package jsonl_test

import (
	"bytes"
	"crypto/rand"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/jsonl"
)

// smallDisk mounts a disk of 64 KiB, and returns what gives it a megabyte.
func smallDisk(t *testing.T) (dir string, grow func()) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounting a small disk needs root: %v; TestAFullDiskLeavesTheFileAsItWas covers the logic", err)
	}
	t.Cleanup(func() {
		// A process that another test is just starting has the file open for a moment.
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, func() {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=1m"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestARealFullDiskIsUnavailableUntilThereIsRoom(t *testing.T) {
	t.Parallel()
	dir, grow := smallDisk(t)
	path := filepath.Join(dir, "out.jsonl")
	b := open(t, path)
	small, large := message("k", 1), message("k", 2)
	large.Payload = bytes.Repeat([]byte("x"), 40_000)
	accepted(t, b.Publish(t.Context(), []*outbox.Message{small, large}))
	before := read(t, path)
	again := message("k", 3)
	again.Payload = large.Payload
	for range 3 {
		batch := []*outbox.Message{message("k", 4), again}
		brokertest.CheckFirst(t, b, batch, "unavailable", "make room")
		if got := read(t, path); got != before {
			t.Fatalf("%d bytes are %d", len(before), len(got))
		}
	}
	grow()
	accepted(t, b.Publish(t.Context(), []*outbox.Message{again}))
	if got := decode(t, read(t, path)); len(got) != 3 {
		t.Errorf("%d lines", len(got))
	}
}

func TestAFullDiskKeepsAnArchivesLinesAndThePlainFilesThatItCantCompress(t *testing.T) {
	t.Parallel()
	dir, grow := smallDisk(t)
	b := archive(t, dir, jsonl.ArchiveConfig{Size: 40_000})
	noise := func(key string) *outbox.Message { // doesn't get smaller
		m := message(key, 1)
		m.Payload = make([]byte, 29_000)
		rand.Read(m.Payload)
		return m
	}
	first, second, third := noise("a"), noise("b"), noise("a")
	accepted(t, b.Publish(t.Context(), []*outbox.Message{first}))
	for range 3 {
		errs := b.Publish(t.Context(), []*outbox.Message{second, third})
		if len(errs) != 2 || !outbox.IsUnavailable(errs[0]) || !strings.Contains(errs[0].Error(), "make room") {
			t.Fatalf("outcomes %v", errs)
		}
		if got := ids(t, dir); len(got) != 1 || got[0] != first.ID.String() {
			t.Fatalf("in the archive: %v", got)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = archive(t, dir, jsonl.ArchiveConfig{Size: 40_000}) // has no room to compress what is there
	if errs := b.Publish(t.Context(), []*outbox.Message{second, third}); !outbox.IsUnavailable(errs[0]) {
		t.Fatalf("outcomes %v", errs)
	}
	if got := names(t, dir, "*.gz", "*.tmp"); got[0] != 0 || got[1] != 0 {
		t.Errorf("compressed and temporary files on a full disk: %v", got)
	}
	grow()
	accepted(t, b.Publish(t.Context(), []*outbox.Message{second, third}))
	accepted(t, b.Publish(t.Context(), []*outbox.Message{message("a", 2)})) // ends the file, and compresses both
	if got := ids(t, dir); len(got) != 4 || got[0] != first.ID.String() || got[2] != third.ID.String() {
		t.Errorf("in the archive: %v", got)
	}
	if got := names(t, dir, "*.gz", "*.jsonl"); got[0] != 2 || got[1] != 1 {
		t.Errorf("compressed and open files: %v", got)
	}
}
