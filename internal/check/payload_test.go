package check_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/pgoutbox/outbox/internal/check"
)

func TestAPayloadHasTheSizeAskedForAndDecodesToItsIdentity(t *testing.T) {
	t.Parallel()
	for _, id := range []check.ID{{Key: 0, Seq: 1}, {Key: 7, Seq: 42}, {Key: math.MaxUint32, Seq: math.MaxUint64}} {
		for _, size := range []int{-1, 0, 1, check.MinSize - 1, check.MinSize, check.MinSize + 1, 27, 28, 29, 256, 1 << 20} {
			p := check.Encode([]byte("before"), id.Key, id.Seq, size)
			p, found := bytes.CutPrefix(p, []byte("before"))
			if !found {
				t.Fatal("the payload isn't appended")
			}
			if want := max(size, check.MinSize); len(p) != want {
				t.Errorf("size %d: %d bytes, want %d", size, len(p), want)
			}
			got, err := check.Decode(p)
			if err != nil || got != id {
				t.Errorf("size %d: %v, %v; want %v", size, got, err, id)
			}
		}
	}
}

func TestAPayloadThatWasChangedInAnyWayDoesNotDecode(t *testing.T) {
	t.Parallel()
	good := check.Encode(nil, 7, 42, 200)
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			if id, err := check.Decode(bad); err == nil {
				t.Fatalf("bit %d of byte %d flipped: decodes to %v", bit, i, id)
			}
		}
		if _, err := check.Decode(good[:i]); err == nil {
			t.Fatalf("cut to %d bytes: decodes", i)
		}
	}
	if _, err := check.Decode(append(bytes.Clone(good), 0)); err == nil {
		t.Error("a byte more: decodes")
	}
	if _, err := check.Decode(check.Encode(nil, 1, 0, 0)); err == nil {
		t.Error("number 0: decodes")
	}
}

func TestAnIdentityIsWrittenAndReadAsText(t *testing.T) {
	t.Parallel()
	for _, id := range []check.ID{{Key: 0, Seq: 1}, {Key: 7, Seq: 42}, {Key: math.MaxUint32, Seq: math.MaxUint64}} {
		if got, err := check.ParseID(id.String()); err != nil || got != id {
			t.Errorf("%s reads as %v, %v", id, got, err)
		}
	}
	for _, bad := range []string{"", "7", "7/", "/7", "7/0",
		"07/1", "+7/1", "-7/1", "7/1/1", "4294967296/1", "7/18446744073709551616", "a/b"} {
		if id, err := check.ParseID(bad); err == nil {
			t.Errorf("%q reads as %v", bad, id)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte("oChk"))
	f.Add(check.Encode(nil, 7, 42, 0))
	f.Add(check.Encode(nil, 7, 42, 100))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := check.Decode(b)
		if err == nil && id.Seq == 0 {
			t.Error("decodes to number 0")
		}
		if err == nil != (id != check.ID{}) {
			t.Errorf("identity %v with error %v", id, err)
		}
	})
}

func FuzzParseID(f *testing.F) {
	f.Add("7/42")
	f.Add("/")
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := check.ParseID(s); err == nil && id.String() != s {
			t.Errorf("%q reads as %v", s, id)
		}
	})
}

func BenchmarkEncode256(b *testing.B) {
	b.SetBytes(256)
	var p []byte
	for i := range b.N {
		p = check.Encode(p[:0], uint32(i), 1, 256)
	}
}

func BenchmarkDecode256(b *testing.B) {
	b.SetBytes(256)
	p := check.Encode(nil, 7, 42, 256)
	for b.Loop() {
		if _, err := check.Decode(p); err != nil {
			b.Fatal(err)
		}
	}
}
