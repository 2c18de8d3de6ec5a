package jsonl_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pgoutbox/outbox"
)

func TestARealFullDiskIsUnavailableUntilThereIsRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounting a small disk needs root: %v; TestAFullDiskLeavesTheFileAsItWas covers the logic", err)
	}
	t.Cleanup(func() {
		// A process that another test is just starting has the file open for a moment.
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "out.jsonl")
	b := open(t, path)
	small, large := message("k", 1), message("k", 2)
	large.Payload = bytes.Repeat([]byte("x"), 40_000)
	accepted(t, b.Publish(t.Context(), []*outbox.Message{small, large}))
	before := read(t, path)
	again := message("k", 3)
	again.Payload = large.Payload
	for range 3 {
		errs := b.Publish(t.Context(), []*outbox.Message{message("k", 4), again})
		if len(errs) != 2 || !outbox.IsUnavailable(errs[0]) || !strings.Contains(errs[0].Error(), "make room") {
			t.Fatalf("outcomes %v", errs)
		}
		if got := read(t, path); got != before {
			t.Fatalf("%d bytes are %d", len(before), len(got))
		}
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	accepted(t, b.Publish(t.Context(), []*outbox.Message{again}))
	if got := decode(t, read(t, path)); len(got) != 3 {
		t.Errorf("%d lines", len(got))
	}
}
