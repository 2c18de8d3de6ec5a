// Package later writes values that may be late, apart from delivery: it collects values under keys and writes them
// together.
package later

import (
	"context"
	"sync"
	"time"
)

// Writer collects values and writes them soon. It keeps values that it can't write, and merges them with later ones. It
// has no goroutine while there is nothing to write. Safe for concurrent use.
type Writer[K comparable, V any] struct {
	pause time.Duration
	merge func(earlier, next V) V
	write func(context.Context, map[K]V) error

	writing sync.Mutex // held during a write, before mu

	mu      sync.Mutex
	pending map[K]V
	due     bool // a timer is set
	last    time.Time
}

// writeWithin bounds one write.
const writeWithin = 2 * time.Second

// New returns a writer that makes at least a pause between two writes.
func New[K comparable, V any](pause time.Duration, merge func(earlier, next V) V,
	write func(context.Context, map[K]V) error) *Writer[K, V] {
	return &Writer[K, V]{pause: pause, merge: merge, write: write, pending: make(map[K]V)}
}

// Note records a value to be written soon. It doesn't block.
func (w *Writer[K, V]) Note(key K, value V) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note(key, value)
}

func (w *Writer[K, V]) note(key K, value V) {
	if earlier, found := w.pending[key]; found {
		value = w.merge(earlier, value)
	}
	w.pending[key] = value
	if !w.due {
		w.due = true
		time.AfterFunc(max(0, w.pause-time.Since(w.last)), func() { _ = w.Flush() }) // values that could not be written are kept
	}
}

// Flush writes all collected values now. If that fails, it keeps them for a later try.
func (w *Writer[K, V]) Flush() error {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.mu.Lock()
	taken := w.pending
	w.pending, w.due = make(map[K]V), false
	w.mu.Unlock()
	if len(taken) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), writeWithin)
	defer cancel()
	err := w.write(ctx, taken)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = time.Now()
	if err == nil {
		return nil
	}
	after := w.pending
	w.pending = make(map[K]V)
	for key, value := range taken {
		w.note(key, value)
	}
	for key, value := range after {
		w.note(key, value)
	}
	return err
}

// End is the last Flush for these keys, or for all keys if none is given. It gives up the values that it can't write.
func (w *Writer[K, V]) End(keys ...K) error {
	err := w.Flush()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(keys) == 0 {
		clear(w.pending)
	}
	for _, key := range keys {
		delete(w.pending, key)
	}
	return err
}
