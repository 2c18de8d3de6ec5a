package format

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The wire format of schema registries: a zero byte, the schema's id as four bytes, big-endian, for Protobuf the path
// to the message's descriptor, then the data in the schema's encoding. It is described at
// https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format

// AppendFrame appends the header of the wire format to b. index is nil for Avro and JSON; for Protobuf it
// is the path of message indexes to the message's descriptor, {0} for the first message of a schema.
func AppendFrame(b []byte, id uint32, index []int) []byte {
	b = append(b, 0)
	b = binary.BigEndian.AppendUint32(b, id)
	switch {
	case len(index) == 0:
		return b
	case len(index) == 1 && index[0] == 0:
		return append(b, 0) // the short form of the most common path
	}
	b = binary.AppendVarint(b, int64(len(index)))
	for _, i := range index {
		b = binary.AppendVarint(b, int64(i))
	}
	return b
}

// maxIndex bounds the nesting of a Protobuf message.
const maxIndex = 100

// ParseFrame reads the header of the wire format and returns the data after it. protobuf means that the header has an
// index.
func ParseFrame(b []byte, protobuf bool) (id uint32, index []int, data []byte, err error) {
	if len(b) < 5 || b[0] != 0 {
		return 0, nil, nil, errors.New("format: not framed for a schema registry: no zero byte with an id of four bytes")
	}
	id, data = binary.BigEndian.Uint32(b[1:]), b[5:]
	if !protobuf {
		return id, nil, data, nil
	}
	length, n := binary.Varint(data)
	if n <= 0 || length < 0 || length > maxIndex {
		return 0, nil, nil, fmt.Errorf("format: not framed for a Protobuf schema: an index of %d numbers", length)
	}
	data = data[n:]
	if length == 0 {
		return id, []int{0}, data, nil
	}
	for range length {
		i, n := binary.Varint(data)
		if n <= 0 || i < 0 || i > 1<<31-1 {
			return 0, nil, nil, errors.New("format: not framed for a Protobuf schema: the index breaks off")
		}
		index, data = append(index, int(i)), data[n:]
	}
	return id, index, data, nil
}
