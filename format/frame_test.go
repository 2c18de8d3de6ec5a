package format_test

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/pgoutbox/outbox/format"
)

// The examples of indexes are those of Confluent's description of the wire format: [0] is written as a
// single 0; [1, 0] as a length of two and the two numbers, all zigzag-encoded.
func TestFramesAreAsPublished(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		id    uint32
		index []int
		want  string
	}{
		{"Avro and JSON", 1, nil, "0000000001"},
		{"a large id", 0x01020304, nil, "0001020304"},
		{"the first message of a Protobuf schema", 1, []int{0}, "000000000100"},
		{"the first message in the second", 1, []int{1, 0}, "0000000001" + "040200"},
		{"the second message", 1, []int{1}, "0000000001" + "0202"},
		{"a far one", 7, []int{64, 2}, "0000000007" + "04" + "8001" + "04"},
	} {
		got := format.AppendFrame([]byte("x"), test.id, test.index)[1:]
		if hex.EncodeToString(got) != test.want {
			t.Errorf("%s: %x, want %s", test.name, got, test.want)
		}
		id, index, data, err := format.ParseFrame(append(got, "data"...), test.index != nil)
		if err != nil || id != test.id || !slices.Equal(index, test.index) || string(data) != "data" {
			t.Errorf("%s: read back as %d %v %q, %v", test.name, id, index, data, err)
		}
	}
	for _, wrong := range []string{"", "00000000", "0100000001"} {
		b, _ := hex.DecodeString(wrong)
		if _, _, _, err := format.ParseFrame(b, false); err == nil {
			t.Errorf("%q was read", wrong)
		}
	}
	for _, wrong := range []string{"0000000001", "0000000001" + "01", "0000000001" + "04" + "02", "0000000001" + "ffffffff0f"} {
		b, _ := hex.DecodeString(wrong)
		if _, _, _, err := format.ParseFrame(b, true); err == nil {
			t.Errorf("%q was read as Protobuf", wrong)
		}
	}
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x01\x04\x02\x00data"), true)
	f.Add([]byte("\x00\x00\x00\x00\x01"), false)
	f.Fuzz(func(t *testing.T, b []byte, protobuf bool) {
		id, index, data, err := format.ParseFrame(b, protobuf)
		if err != nil {
			return
		}
		again := append(format.AppendFrame(nil, id, index), data...)
		id2, index2, data2, err := format.ParseFrame(again, protobuf)
		if err != nil || id2 != id || !slices.Equal(index, index2) || !bytes.Equal(data, data2) {
			t.Fatalf("%x: %d %v %x, then %d %v %x, %v", b, id, index, data, id2, index2, data2, err)
		}
	})
}
