package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A record of the cursor topic has a version, the transaction's own number, and a list of messages that the
// transactional id in the record's key has published and that may be unsettled. Each entry has the position and ref,
// both as differences to the previous entry, the id, and the lane if it was a hold.

const cursorVersion = 1

// cursorKey begins the keys of these records. No message has such a key: a text has no NUL, and formats are refused
// such a key. So a role that can only write messages can't replace one of these records, in any topic.
const cursorKey = "\x00outbox\x00"

// appendCursor writes the record of a transaction: the rest of earlier parts, then its own part.
func appendCursor(to []byte, attempt uint64, parts []*part, own *part) []byte {
	count := 0
	if own != nil {
		count = len(own.entries)
	}
	for _, p := range parts {
		count += len(p.entries)
	}
	to = append(to, cursorVersion)
	to = binary.BigEndian.AppendUint64(to, attempt)
	to = binary.AppendUvarint(to, uint64(count))
	var last entry
	for _, p := range parts {
		to, last = appendEntries(to, p.entries, last)
	}
	if own != nil {
		to, _ = appendEntries(to, own.entries, last)
	}
	return to
}

func appendEntries(to []byte, entries []entry, last entry) ([]byte, entry) {
	for i := range entries {
		e := &entries[i]
		to = binary.AppendVarint(to, e.position-last.position)
		to = binary.AppendVarint(to, int64(e.ref-last.ref))
		to = append(to, e.id[:]...)
		to = binary.AppendUvarint(to, uint64(len(e.lane)))
		to = append(to, e.lane...)
		last = *e
	}
	return to, last
}

var errCursorRecord = errors.New("the record is damaged, or something else has written it")

// parseCursor reads what appendCursor writes.
func parseCursor(value []byte) (*part, error) {
	if len(value) < 9 {
		return nil, errCursorRecord
	}
	if value[0] != cursorVersion {
		return nil, fmt.Errorf("the record is of version %d, and this program knows %d: run the newer program", value[0], cursorVersion)
	}
	r := cursorReader{rest: value[9:]}
	p := &part{attempt: binary.BigEndian.Uint64(value[1:9])}
	count := r.uvarint()
	if count > uint64(len(r.rest)) { // an entry has more than a byte
		return nil, errCursorRecord
	}
	p.entries = make([]entry, 0, count)
	var last entry
	for range count {
		var e entry
		e.position = last.position + r.varint()
		e.ref = last.ref + uint64(r.varint())
		copy(e.id[:], r.take(uint64(len(e.id))))
		e.lane = string(r.take(r.uvarint()))
		p.entries = append(p.entries, e)
		last = e
	}
	if r.short || len(r.rest) > 0 {
		return nil, errCursorRecord
	}
	return p, nil
}

type cursorReader struct {
	rest  []byte
	short bool // there were fewer bytes than expected
}

func (r *cursorReader) take(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.short, r.rest = true, nil
		return nil
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *cursorReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	r.skip(n)
	return v
}

func (r *cursorReader) varint() int64 {
	v, n := binary.Varint(r.rest)
	r.skip(n)
	return v
}

func (r *cursorReader) skip(n int) {
	if n <= 0 {
		r.short, r.rest = true, nil
		return
	}
	r.rest = r.rest[n:]
}
