package check

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

// ID names one message of a run.
type ID struct {
	Key uint32 `json:"key"`
	Seq uint64 `json:"seq"`
}

// String returns the ID as "key/seq", a form that suits a message header.
func (id ID) String() string { return fmt.Sprintf("%d/%d", id.Key, id.Seq) }

// ParseID reads what [ID.String] wrote.
func ParseID(s string) (ID, error) {
	key, seq, found := strings.Cut(s, "/")
	k, keyErr := strconv.ParseUint(key, 10, 32)
	n, seqErr := strconv.ParseUint(seq, 10, 64)
	id := ID{Key: uint32(k), Seq: n}
	// Comparing the text refuses signs and leading zeros.
	if !found || keyErr != nil || seqErr != nil || n == 0 || id.String() != s {
		return ID{}, fmt.Errorf("%q is not a message identity: want key/seq, as in 7/42", s)
	}
	return id, nil
}

// MinSize is the size in bytes of the smallest payload.
const MinSize = len(magic) + 4 + 8 + 4

const magic = "oChk"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode appends a payload of size bytes that carries the identity, or of
// [MinSize] if that is more, and returns the extended slice. The bytes that
// fill it up follow from the identity, differ from message to message and don't
// compress; a checksum covers all of it.
func Encode(dst []byte, key uint32, seq uint64, size int) []byte {
	start := len(dst)
	dst = append(dst, magic...)
	dst = binary.BigEndian.AppendUint32(dst, key)
	dst = binary.BigEndian.AppendUint64(dst, seq)
	state := uint64(key)<<40 ^ seq
	for left := size - MinSize; left > 0; left -= 8 {
		// splitmix64, by Sebastiano Vigna
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		dst = binary.LittleEndian.AppendUint64(dst, z^z>>31)
		if left < 8 {
			dst = dst[:len(dst)-8+left]
		}
	}
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// Decode returns the identity in a payload made by [Encode], or an error when
// any byte of it was changed, added or removed.
func Decode(payload []byte) (ID, error) {
	if len(payload) < MinSize {
		return ID{}, fmt.Errorf("payload of %d bytes is too short to carry an identity", len(payload))
	}
	if string(payload[:len(magic)]) != magic {
		return ID{}, errors.New("payload doesn't begin like one that the checker made")
	}
	body, sum := payload[:len(payload)-4], binary.BigEndian.Uint32(payload[len(payload)-4:])
	if got := crc32.Checksum(body, castagnoli); got != sum {
		return ID{}, fmt.Errorf("payload of %d bytes is corrupt: its checksum is %08x and should be %08x", len(payload), got, sum)
	}
	id := ID{Key: binary.BigEndian.Uint32(body[4:]), Seq: binary.BigEndian.Uint64(body[8:])}
	if id.Seq == 0 {
		return ID{}, errors.New("payload carries the sequence number 0; numbers start at 1")
	}
	return id, nil
}
