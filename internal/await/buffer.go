package await

import (
	"bytes"
	"sync"
)

// Buffer collects what others write while a test reads it. The zero value is empty.
type Buffer struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.String()
}

// Reset empties it.
func (b *Buffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes.Reset()
}
