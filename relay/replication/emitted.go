package replication

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay/internal/wal"
)

// prefix marks the logical messages that are outbox messages.
const prefix = outbox.EmitPrefix

// emittedOrder is the order of a logical message's fields after its fixed part. docs/replication.md documents it.
func (c *columns) emittedOrder() []int {
	column := make(map[string]int, len(c.names))
	for i, name := range c.names {
		column[name] = i
	}
	order := make([]int, 0, 10)
	for _, name := range []string{"message_id", "topic", "key", "aggregate_type", "aggregate_id", "event_type", "payload",
		"content_type", "headers", "deliver_at"} {
		order = append(order, column[name])
	}
	return order
}

var errEmitted = errors.New("a logical message with the prefix " + prefix + " is not in the encoding of an outbox message")

// fillEmitted reads a logical message into r.
func (r *row) fillEmitted(order []int, content []byte) error {
	r.reset()
	f := wal.Parser{Data: content}
	if version := f.Uint8(); version != outbox.EmitVersion {
		return fmt.Errorf("%w: its version is %d, this program knows %d", errEmitted, version, outbox.EmitVersion)
	}
	r.values[r.columns.id] = f.Take(8)
	r.values[r.columns.createdAt] = f.Take(8)
	for _, column := range order {
		n := int32(f.Uint32())
		switch {
		case f.Fault:
		case n < -1:
			f.Fault = true
		case n >= 0:
			if v := f.Take(int(n)); !f.Fault {
				if v == nil {
					v = []byte{}
				}
				if binary := column == r.columns.messageID ||
					column == r.columns.payload || column == r.columns.deliverAt; !binary && !isText(v, column == r.columns.headers) {
					return fmt.Errorf("%w: its %s is not UTF-8, or has a NUL in it", errEmitted, r.columns.names[column])
				}
				r.values[column] = v
			}
		}
	}
	if f.Fault || len(f.Data) > 0 {
		return fmt.Errorf("%w: its fields don't fit its length", errEmitted)
	}
	if len(r.values[r.columns.messageID]) != 16 {
		return fmt.Errorf("%w: it has no message id of 16 bytes", errEmitted)
	}
	if at := r.values[r.columns.deliverAt]; at != nil && len(at) != 8 {
		return fmt.Errorf("%w: deliver_at has %d bytes", errEmitted, len(at))
	}
	r.fillShard()
	return nil
}

// isText reports whether v is a text that the database can store, and has no NUL as a JSON text. The server has not
// checked v.
func isText(v []byte, isJSON bool) bool {
	if !utf8.Valid(v) || bytes.IndexByte(v, 0) >= 0 {
		return false
	}
	for i := 0; isJSON && i < len(v); i++ {
		if v[i] == '\\' {
			if i++; bytes.HasPrefix(v[i:], []byte("u0000")) {
				return false
			}
		}
	}
	return true
}

// fillBroken fills r for a logical message that can't be read: it becomes an invalid delivery with the bytes as its
// payload, so that it isn't dropped silently. Its position in the log, negated, is its id; no row has a negative id.
// Positions repeat in another cluster, so its message id is a hash that includes the content.
func (r *row) fillBroken(at wal.LSN, content []byte) {
	r.reset()
	r.scratch = binary.BigEndian.AppendUint64(r.scratch, uint64(-int64(at)))
	r.scratch = append(r.scratch, 0, 0, 0, 0, 0, 0, 0, 0)
	name := sha256.Sum256(binary.BigEndian.AppendUint64(slices.Clone(content), uint64(at)))
	r.scratch = append(r.scratch, name[:16]...)
	r.values[r.columns.id] = r.scratch[:8:8]
	r.values[r.columns.createdAt] = r.scratch[8:16:16]
	r.values[r.columns.messageID] = r.scratch[16:32:32]
	r.values[r.columns.topic] = []byte(prefix)
	r.values[r.columns.payload] = content
	if content == nil {
		r.values[r.columns.payload] = []byte{}
	}
	r.fillShard()
}
