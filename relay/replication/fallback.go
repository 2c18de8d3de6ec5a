package replication

import "github.com/pgoutbox/outbox/relay/internal/wal"

// boundary is a point in both the table and the log: snapshot sees exactly what commits before lsn. A slot begins at
// one.
type boundary struct {
	lsn      wal.LSN
	snapshot string

	version string // of the publication
	err     error
}

// fallback is where the cursor is, and where it may go: the table can be read from there on. The position is ahead of
// it, for no snapshot is exactly at the position.
type fallback struct {
	covers wal.LSN // the cursor sees everything that commits before this
	next   []boundary
}

// maxFallbacks bounds the snapshots that are remembered. While a broker is down, one comes each second.
const maxFallbacks = 32

// note remembers a snapshot that sees everything that commits before lsn.
func (f *fallback) note(snapshot string, lsn wal.LSN) {
	n := len(f.next)
	if lsn <= f.covers || n > 0 && lsn <= f.next[n-1].lsn {
		return // another one was asked for later, and came sooner
	}
	if n == maxFallbacks { // every other one goes; the oldest stays, and the newest, which the end of an outage reaches
		for i := 1; i < maxFallbacks/2; i++ {
			f.next[i] = f.next[2*i+1]
		}
		f.next = f.next[:maxFallbacks/2]
	}
	f.next = append(f.next, boundary{lsn: lsn, snapshot: snapshot})
}

// advance moves the cursor as far as everything is settled, and returns it; prev is where it was.
func (f *fallback) advance(position wal.LSN, prev string) string {
	for len(f.next) > 0 && f.next[0].lsn <= position {
		prev, f.covers = f.next[0].snapshot, f.next[0].lsn
		f.next = f.next[1:]
	}
	return prev
}
