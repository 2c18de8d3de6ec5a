package replication

import (
	"encoding/binary"
	"math/bits"
)

// shardOf computes the column shard of outbox.messages: hashtextextended(name, 0) & 63. The log leaves out generated
// columns. The hash is Bob Jenkins' lookup3, as in hash_bytes_extended of PostgreSQL with seed 0 on a little-endian
// machine. On other machines the shards differ from the table's, which only matters to people who compare them.
func shardOf(name []byte) uint16 {
	n := uint32(len(name))
	a := uint32(0x9e3779b9) + n + 3923095
	b, c := a, a
	for len(name) >= 12 {
		a += binary.LittleEndian.Uint32(name)
		b += binary.LittleEndian.Uint32(name[4:])
		c += binary.LittleEndian.Uint32(name[8:])
		a, b, c = mix(a, b, c)
		name = name[12:]
	}
	var tail [12]byte
	copy(tail[:], name)
	a += binary.LittleEndian.Uint32(tail[0:])
	b += binary.LittleEndian.Uint32(tail[4:])
	c += binary.LittleEndian.Uint32(tail[8:]) << 8 // the lowest byte is for the length
	return uint16(final(a, b, c) & 63)
}

func mix(a, b, c uint32) (uint32, uint32, uint32) {
	a -= c
	a ^= bits.RotateLeft32(c, 4)
	c += b
	b -= a
	b ^= bits.RotateLeft32(a, 6)
	a += c
	c -= b
	c ^= bits.RotateLeft32(b, 8)
	b += a
	a -= c
	a ^= bits.RotateLeft32(c, 16)
	c += b
	b -= a
	b ^= bits.RotateLeft32(a, 19)
	a += c
	c -= b
	c ^= bits.RotateLeft32(b, 4)
	b += a
	return a, b, c
}

func final(a, b, c uint32) uint32 {
	c ^= b
	c -= bits.RotateLeft32(b, 14)
	a ^= c
	a -= bits.RotateLeft32(c, 11)
	b ^= a
	b -= bits.RotateLeft32(a, 25)
	c ^= b
	c -= bits.RotateLeft32(b, 16)
	a ^= c
	a -= bits.RotateLeft32(c, 4)
	b ^= a
	b -= bits.RotateLeft32(a, 14)
	c ^= b
	c -= bits.RotateLeft32(b, 24)
	return c
}
