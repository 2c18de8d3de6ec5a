package replication

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay/internal/wal"
)

// frame writes messages as the server does.
type frame []byte

func (w frame) u8(v byte) frame      { return append(w, v) }
func (w frame) u16(v int) frame      { return binary.BigEndian.AppendUint16(w, uint16(v)) }
func (w frame) u32(v uint32) frame   { return binary.BigEndian.AppendUint32(w, v) }
func (w frame) u64(v uint64) frame   { return binary.BigEndian.AppendUint64(w, v) }
func (w frame) text(s string) frame  { return append(append(w, s...), 0) }
func (w frame) bytes(b []byte) frame { return append(w.u32(uint32(len(b))), b...) }

func relationOf(id uint32, columns ...wal.Column) frame {
	w := frame{}.u8('R').u32(id).text("outbox").text("messages").u8('d').u16(len(columns))
	for _, c := range columns {
		w = w.u8(0).text(c.Name).u32(c.OID).u32(1<<32 - 1)
	}
	return w
}

// insertOf is an insert; nil is NULL, binary unless text says so.
func insertOf(id uint32, values ...wal.Field) frame {
	w := frame{}.u8('I').u32(id).u8('N').u16(len(values))
	for _, v := range values {
		w = w.u8(v.Format)
		if v.Format == wal.FormatBinary || v.Format == wal.FormatText {
			w = w.bytes(v.Data)
		}
	}
	return w
}

func binaryOf(b []byte) wal.Field { return wal.Field{Format: wal.FormatBinary, Data: b} }

var null = wal.Field{Format: wal.FormatNull}

func TestTransactionsAndMessagesAreDecoded(t *testing.T) {
	t.Parallel()
	begin, err := wal.Decode(frame{}.u8('B').u64(100).u64(7).u32(42))
	if err != nil || begin.Kind != wal.KindBegin || begin.LSN != 100 {
		t.Errorf("begin: %+v, %v", begin, err)
	}
	commit, err := wal.Decode(frame{}.u8('C').u8(0).u64(100).u64(140).u64(7))
	if err != nil || commit.Kind != wal.KindCommit || commit.LSN != 100 || commit.End != 140 {
		t.Errorf("commit: %+v, %v", commit, err)
	}
	message, err := wal.Decode(frame{}.u8('M').u8(1).u64(90).text("outbox").bytes([]byte("x\x00y")))
	if err != nil || !message.Transactional || message.LSN != 90 ||
		string(message.Prefix) != "outbox" || string(message.Content) != "x\x00y" {
		t.Errorf("message: %+v, %v", message, err)
	}
	for _, w := range []frame{
		frame{}.u8('O').u64(1).text("origin"),
		frame{}.u8('Y').u32(1).text("public").text("color"),
		frame{}.u8('T').u32(1).u8(0).u32(9),
		frame{}.u8('D').u32(1).u8('K').u16(0),
	} {
		if _, err := wal.Decode(w); err != nil {
			t.Errorf("%q: %v", w[0], err)
		}
	}
}

func TestMessagesThatAreCutOffAreErrors(t *testing.T) {
	t.Parallel()
	whole := []frame{
		frame{}.u8('B').u64(100).u64(7).u32(42),
		frame{}.u8('C').u8(0).u64(100).u64(140).u64(7),
		frame{}.u8('M').u8(1).u64(90).text("outbox").bytes([]byte("content")),
		relationOf(1, wal.Column{Name: "id", OID: oidInt8}, wal.Column{Name: "topic", OID: oidText}),
		insertOf(1, binaryOf([]byte("12345678")), binaryOf([]byte("topic"))),
	}
	for _, w := range whole {
		if err := walk(w); err != nil {
			t.Errorf("%q: %v", w[0], err)
		}
		for n := range len(w) {
			if err := walk(w[:n]); err == nil {
				t.Errorf("%q, cut to %d of %d bytes, was accepted", w[0], n, len(w))
			}
		}
	}
	if _, err := wal.Decode([]byte("?")); err == nil {
		t.Error("an unknown message was accepted")
	}
}

// walk decodes all of a message.
func walk(data []byte) error {
	c, err := wal.Decode(data)
	if err != nil {
		return err
	}
	for range c.Row.Columns {
		if _, err := c.Row.Next(); err != nil {
			return err
		}
	}
	return nil
}

// usual are the columns of outbox.messages as PostgreSQL 18 sends them.
var usual = []wal.Column{{Name: "xid", OID: oidXid8}, {Name: "id", OID: oidInt8},
	{Name: "message_id", OID: oidUUID}, {Name: "topic", OID: oidText}, {Name: "key", OID: oidText},
	{Name: "aggregate_type", OID: oidText}, {Name: "aggregate_id",
		OID: oidText}, {Name: "event_type", OID: oidText}, {Name: "payload", OID: oidBytea},
	{Name: "content_type", OID: oidText}, {Name: "headers", OID: oidJSON}, {Name: "deliver_at",
		OID: oidTimestamptz}, {Name: "created_at", OID: oidTimestamptz}, {Name: "segment", OID: oidInt2}}

var usualRow = []wal.Field{binaryOf(frame{}.u64(77)), binaryOf(frame{}.u64(5)), binaryOf([]byte("0123456789abcdef")), binaryOf([]byte("t")),
	binaryOf([]byte("k")), null, null, null, binaryOf([]byte{}),
	null, binaryOf([]byte("{}")), null, binaryOf(frame{}.u64(1)), binaryOf(frame{}.u16(3))}

func fillOf(t *testing.T, columns []wal.Column, values []wal.Field) (*row, error) {
	t.Helper()
	r := newRow()
	c, err := wal.Decode(relationOf(1, columns...))
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLayout(c.Table, &r.columns)
	if err != nil {
		return r, err
	}
	c, err = wal.Decode(insertOf(1, values...))
	if err != nil {
		t.Fatal(err)
	}
	return r, l.fill(r, c.Row)
}

func (r *row) named(name string) []byte { return r.values[slices.Index(r.columns.names, name)] }

func TestColumnsAreFoundByTheirNamesWhereverTheyStand(t *testing.T) {
	t.Parallel()
	columns, values := slices.Clone(usual), slices.Clone(usualRow)
	slices.Reverse(columns)
	slices.Reverse(values)
	columns = append(columns, wal.Column{Name: "added_later", OID: 600})
	values = append(values, wal.Field{Format: wal.FormatText, Data: []byte("(1,2)")})
	for _, order := range []string{"as they are", "reversed"} {
		if order == "as they are" {
			columns, values = usual, usualRow
		}
		r, err := fillOf(t, columns, values)
		if err != nil {
			t.Fatal(err)
		}
		if r.xid != 77 || string(r.named("topic")) != "t" || string(r.named("key")) != "k" || r.named("aggregate_id") != nil {
			t.Errorf("%s: %+v", order, r)
		}
		if p := r.named("payload"); p == nil || len(p) != 0 {
			t.Errorf("%s: an empty payload came as %#v", order, p)
		}
	}
}

func TestColumnsThatChangedTheirTypeAreConverted(t *testing.T) {
	t.Parallel()
	columns, values := slices.Clone(usual), slices.Clone(usualRow)
	set := func(name string, oid uint32, v wal.Field) {
		i := slices.IndexFunc(columns, func(c wal.Column) bool { return c.Name == name })
		columns[i].OID, values[i] = oid, v
	}
	set("id", oidInt4, binaryOf(frame{}.u32(9)))
	set("key", oidUUID, binaryOf(make([]byte, 16)))
	set("aggregate_id", oidInt8, binaryOf(frame{}.u64(12)))
	set("payload", oidJSONB, binaryOf([]byte("\x01[1]")))
	set("headers", oidJSONB, binaryOf([]byte("\x01"+`{"a":"b"}`)))
	r, err := fillOf(t, columns, values)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"id": string(frame{}.u64(9)), "key": "00000000-0000-0000-0000-000000000000",
		"aggregate_id": "12", "payload": "[1]", "headers": `{"a":"b"}`} {
		if got := string(r.named(name)); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestATableThatCanNotBeReadIsRefusedForGood(t *testing.T) {
	t.Parallel()
	without := slices.DeleteFunc(slices.Clone(usual), func(c wal.Column) bool { return c.Name == "message_id" })
	_, err := fillOf(t, without, usualRow[1:])
	if err == nil || !outbox.IsPermanent(err) || !strings.Contains(err.Error(), "message_id") {
		t.Errorf("without a message id: %v", err)
	}
	point := slices.Clone(usual)
	point[4].OID = 600
	_, err = fillOf(t, point, usualRow)
	if err == nil || !strings.Contains(err.Error(), "key") {
		t.Errorf("with a key that is a point: %v", err)
	}
	toast := slices.Clone(usualRow)
	toast[8] = wal.Field{Format: wal.FormatUnchanged}
	if _, err := fillOf(t, usual, toast); err == nil || !strings.Contains(err.Error(), "payload") {
		t.Errorf("with a payload that wasn't sent: %v", err)
	}
	if _, err := fillOf(t, usual, usualRow[1:]); err == nil {
		t.Error("a row with a column less was accepted")
	}
}

func TestAnEmittedMessageThatCanNotBeReadBecomesAnInvalidOne(t *testing.T) {
	t.Parallel()
	r := newRow()
	order := r.columns.emittedOrder()
	ids := make(map[string]bool)
	for _, content := range []string{"", "\x02", "\x01short", "\x01" + strings.Repeat("\x00", 60), `{"json":"no"}`} {
		if err := r.fillEmitted(order, []byte(content)); !errors.Is(err, errEmitted) {
			t.Errorf("%q: %v", content, err)
		}
		r.fillBroken(1234, []byte(content))
		if string(r.named("payload")) != content || int64(binary.BigEndian.Uint64(r.named("id"))) != -1234 ||
			len(r.named("message_id")) != 16 {
			t.Errorf("%q became %q", content, r.values)
		}
		ids[string(r.named("message_id"))] = true
	}
	if len(ids) != 5 {
		t.Errorf("%d message ids for 5 messages: one could be taken for another", len(ids))
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(relationOf(1, usual...)), []byte(insertOf(1, usualRow...)))
	f.Add([]byte(frame{}.u8('B').u64(100).u64(7).u32(42)), []byte(frame{}.u8('C').u8(0).u64(100).u64(140).u64(7)))
	f.Add([]byte(frame{}.u8('M').u8(1).u64(90).text("outbox").bytes([]byte("\x01content"))),
		[]byte(frame{}.u8('U').u32(5).u8('O').u16(1).u8('n').u8('N').u16(0)))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		r := newRow()
		order := r.columns.emittedOrder()
		var l *layout
		if c, err := wal.Decode(first); err == nil && c.Table != nil {
			l, _ = newLayout(c.Table, &r.columns)
		}
		for _, data := range [][]byte{first, second} {
			before := slices.Clone(data)
			c, err := wal.Decode(data)
			if err == nil {
				rest := c.Row
				for range rest.Columns {
					if _, err := rest.Next(); err != nil {
						break
					}
				}
				if l != nil {
					_ = l.fill(r, c.Row)
				}
				_ = r.fillEmitted(order, c.Content)
			}
			if !slices.Equal(before, data) {
				t.Fatal("decoding has changed what it reads")
			}
		}
	})
}
