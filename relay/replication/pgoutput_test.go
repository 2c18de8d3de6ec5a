package replication

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
)

// wal writes messages as the server does.
type wal []byte

func (w wal) u8(v byte) wal      { return append(w, v) }
func (w wal) u16(v int) wal      { return binary.BigEndian.AppendUint16(w, uint16(v)) }
func (w wal) u32(v uint32) wal   { return binary.BigEndian.AppendUint32(w, v) }
func (w wal) u64(v uint64) wal   { return binary.BigEndian.AppendUint64(w, v) }
func (w wal) text(s string) wal  { return append(append(w, s...), 0) }
func (w wal) bytes(b []byte) wal { return append(w.u32(uint32(len(b))), b...) }

func relationOf(id uint32, columns ...column) wal {
	w := wal{}.u8('R').u32(id).text("outbox").text("messages").u8('d').u16(len(columns))
	for _, c := range columns {
		w = w.u8(0).text(c.name).u32(c.oid).u32(1<<32 - 1)
	}
	return w
}

// insertOf is an insert; nil is NULL, binary unless text says so.
func insertOf(id uint32, values ...value) wal {
	w := wal{}.u8('I').u32(id).u8('N').u16(len(values))
	for _, v := range values {
		w = w.u8(v.format)
		if v.format == formatBinary || v.format == formatText {
			w = w.bytes(v.data)
		}
	}
	return w
}

func binaryOf(b []byte) value { return value{formatBinary, b} }

var null = value{format: formatNull}

func TestTransactionsAndMessagesAreDecoded(t *testing.T) {
	t.Parallel()
	begin, err := decode(wal{}.u8('B').u64(100).u64(7).u32(42))
	if err != nil || begin.kind != kindBegin || begin.lsn != 100 || begin.xid != 42 {
		t.Errorf("begin: %+v, %v", begin, err)
	}
	commit, err := decode(wal{}.u8('C').u8(0).u64(100).u64(140).u64(7))
	if err != nil || commit.kind != kindCommit || commit.lsn != 100 || commit.end != 140 {
		t.Errorf("commit: %+v, %v", commit, err)
	}
	message, err := decode(wal{}.u8('M').u8(1).u64(90).text("outbox").bytes([]byte("x\x00y")))
	if err != nil || !message.transactional || message.lsn != 90 || string(message.prefix) != "outbox" || string(message.content) != "x\x00y" {
		t.Errorf("message: %+v, %v", message, err)
	}
	for _, w := range []wal{
		wal{}.u8('O').u64(1).text("origin"),
		wal{}.u8('Y').u32(1).text("public").text("color"),
		wal{}.u8('T').u32(1).u8(0).u32(9),
		wal{}.u8('D').u32(1).u8('K').u16(0),
	} {
		if _, err := decode(w); err != nil {
			t.Errorf("%q: %v", w[0], err)
		}
	}
}

func TestAnUpdateHasItsNewRowBehindTheOldOne(t *testing.T) {
	t.Parallel()
	old := wal{}.u8('U').u32(5).u8('O').u16(2).u8('b').bytes([]byte("gone")).u8('n')
	c, err := decode(old.u8('N').u16(2).u8('u').u8('t').bytes([]byte("new")))
	if err != nil || c.relation != 5 || c.tuple.columns != 2 {
		t.Fatalf("%+v, %v", c, err)
	}
	first, _ := c.tuple.next()
	second, err := c.tuple.next()
	if err != nil || first.format != formatUnchanged || second.format != formatText || string(second.data) != "new" {
		t.Errorf("%+v %+v %v", first, second, err)
	}
}

func TestMessagesThatAreCutOffAreErrors(t *testing.T) {
	t.Parallel()
	whole := []wal{
		wal{}.u8('B').u64(100).u64(7).u32(42),
		wal{}.u8('C').u8(0).u64(100).u64(140).u64(7),
		wal{}.u8('M').u8(1).u64(90).text("outbox").bytes([]byte("content")),
		relationOf(1, column{"id", oidInt8}, column{"topic", oidText}),
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
	if _, err := decode([]byte("?")); err == nil {
		t.Error("an unknown message was accepted")
	}
}

// walk decodes all of a message.
func walk(data []byte) error {
	if len(data) > 0 && data[0] == 'R' {
		_, err := decodeRelation(data)
		return err
	}
	c, err := decode(data)
	if err != nil {
		return err
	}
	for range c.tuple.columns {
		if _, err := c.tuple.next(); err != nil {
			return err
		}
	}
	return nil
}

// usual are the columns of outbox.messages as PostgreSQL 18 sends them.
var usual = []column{{"xid", oidXid8}, {"id", oidInt8}, {"message_id", oidUUID}, {"topic", oidText}, {"key", oidText},
	{"aggregate_type", oidText}, {"aggregate_id", oidText}, {"event_type", oidText}, {"payload", oidBytea},
	{"content_type", oidText}, {"headers", oidJSONB}, {"deliver_at", oidTimestamptz}, {"created_at", oidTimestamptz}, {"segment", oidInt2}}

var usualRow = []value{binaryOf(wal{}.u64(77)), binaryOf(wal{}.u64(5)), binaryOf([]byte("0123456789abcdef")), binaryOf([]byte("t")),
	binaryOf([]byte("k")), null, null, null, binaryOf([]byte{}), null, binaryOf([]byte("\x01{}")), null, binaryOf(wal{}.u64(1)), binaryOf(wal{}.u16(3))}

func fillOf(t *testing.T, columns []column, values []value) (*row, error) {
	t.Helper()
	r := newRow()
	rel, err := decodeRelation(relationOf(1, columns...))
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLayout(&rel, &r.columns)
	if err != nil {
		return r, err
	}
	c, err := decode(insertOf(1, values...))
	if err != nil {
		t.Fatal(err)
	}
	return r, l.fill(r, c.tuple)
}

func (r *row) named(name string) []byte { return r.values[slices.Index(r.columns.names, name)] }

func TestColumnsAreFoundByTheirNamesWhereverTheyStand(t *testing.T) {
	t.Parallel()
	columns, values := slices.Clone(usual), slices.Clone(usualRow)
	slices.Reverse(columns)
	slices.Reverse(values)
	columns = append(columns, column{"added_later", 600})
	values = append(values, value{formatText, []byte("(1,2)")})
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
	set := func(name string, oid uint32, v value) {
		i := slices.IndexFunc(columns, func(c column) bool { return c.name == name })
		columns[i].oid, values[i] = oid, v
	}
	set("id", oidInt4, binaryOf(wal{}.u32(9)))
	set("key", oidUUID, binaryOf(make([]byte, 16)))
	set("aggregate_id", oidInt8, binaryOf(wal{}.u64(12)))
	set("payload", oidJSONB, binaryOf([]byte("\x01[1]")))
	set("headers", oidJSON, binaryOf([]byte(`{"a":"b"}`)))
	r, err := fillOf(t, columns, values)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"id": string(wal{}.u64(9)), "key": "00000000-0000-0000-0000-000000000000",
		"aggregate_id": "12", "payload": "[1]", "headers": "\x01" + `{"a":"b"}`} {
		if got := string(r.named(name)); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestATableThatCanNotBeReadIsRefusedForGood(t *testing.T) {
	t.Parallel()
	without := slices.DeleteFunc(slices.Clone(usual), func(c column) bool { return c.name == "message_id" })
	_, err := fillOf(t, without, usualRow[1:])
	if !errors.Is(err, ErrLayout) || !outbox.IsPermanent(err) || !strings.Contains(err.Error(), "message_id") {
		t.Errorf("without a message id: %v", err)
	}
	point := slices.Clone(usual)
	point[4].oid = 600
	_, err = fillOf(t, point, usualRow)
	if !errors.Is(err, ErrLayout) || !strings.Contains(err.Error(), "key") {
		t.Errorf("with a key that is a point: %v", err)
	}
	toast := slices.Clone(usualRow)
	toast[8] = value{format: formatUnchanged}
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
		if string(r.named("payload")) != content || int64(binary.BigEndian.Uint64(r.named("id"))) != -1234 || len(r.named("message_id")) != 16 {
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
	f.Add([]byte(wal{}.u8('B').u64(100).u64(7).u32(42)), []byte(wal{}.u8('C').u8(0).u64(100).u64(140).u64(7)))
	f.Add([]byte(wal{}.u8('M').u8(1).u64(90).text("outbox").bytes([]byte("\x01content"))), []byte(wal{}.u8('U').u32(5).u8('O').u16(1).u8('n').u8('N').u16(0)))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		r := newRow()
		order := r.columns.emittedOrder()
		var l *layout
		if rel, err := decodeRelation(first); err == nil {
			l, _ = newLayout(&rel, &r.columns)
		}
		for _, data := range [][]byte{first, second} {
			before := slices.Clone(data)
			c, err := decode(data)
			if err == nil {
				rest := c.tuple
				for range rest.columns {
					if _, err := rest.next(); err != nil {
						break
					}
				}
				if l != nil {
					_ = l.fill(r, c.tuple)
				}
				_ = r.fillEmitted(order, c.content)
			}
			if !slices.Equal(before, data) {
				t.Fatal("decoding has changed what it reads")
			}
		}
	})
}
