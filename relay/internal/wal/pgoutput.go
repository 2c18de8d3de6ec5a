package replication

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// The messages of the plugin pgoutput, protocol version 1, decoded in place: what a decoded message holds
// points into the bytes that it was decoded from. Format: "Logical Replication Message Formats" in
// PostgreSQL's manual.

// kind is the first byte of a message.
type kind byte

const (
	kindBegin    kind = 'B'
	kindCommit   kind = 'C'
	kindOrigin   kind = 'O'
	kindRelation kind = 'R'
	kindType     kind = 'Y'
	kindInsert   kind = 'I'
	kindUpdate   kind = 'U'
	kindDelete   kind = 'D'
	kindTruncate kind = 'T'
	kindMessage  kind = 'M'
)

// change is a decoded message. Which fields are set depends on its kind.
type change struct {
	kind kind

	// Of begin: where its commit record lies. Of commit: the same, and the end of that record. Of a
	// logical message: where it lies.
	lsn, end LSN
	xid      uint32 // of begin

	relation uint32 // of insert, update and delete
	tuple    tuple  // of insert and update: the new row

	// Of a logical message.
	transactional bool
	prefix        []byte
	content       []byte
}

// relation is what a relation message says of a table.
type relation struct {
	id        uint32
	namespace string
	name      string
	columns   []column
	list      []string // their names, when somebody has asked for them
}

type column struct {
	name string
	oid  uint32
}

// tuple is a row that is yet to be walked through.
type tuple struct {
	columns int
	data    []byte
}

// value is one column of a tuple.
type value struct {
	format byte // one of the constants
	data   []byte
}

const (
	formatNull      = 'n'
	formatUnchanged = 'u' // a value stored out of line that an update has left alone: it isn't sent
	formatText      = 't'
	formatBinary    = 'b'
)

var errCut = errors.New("a message of pgoutput is cut off")

// fields reads numbers and texts one after the other. After the first fault it returns zeros.
type fields struct {
	data  []byte
	fault bool
}

func (f *fields) take(n int) []byte {
	if n < 0 || len(f.data) < n {
		f.fault, f.data = true, nil
		return nil
	}
	taken := f.data[:n:n]
	f.data = f.data[n:]
	return taken
}

func (f *fields) uint8() byte {
	if b := f.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (f *fields) uint16() uint16 {
	if b := f.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (f *fields) uint32() uint32 {
	if b := f.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (f *fields) uint64() uint64 {
	if b := f.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// text reads up to a zero byte.
func (f *fields) text() []byte {
	i := bytes.IndexByte(f.data, 0)
	if i < 0 {
		f.fault, f.data = true, nil
		return nil
	}
	b := f.data[:i:i]
	f.data = f.data[i+1:]
	return b
}

// decode reads one message. Relation messages are read by decodeRelation.
func decode(data []byte) (c change, err error) {
	f := fields{data: data}
	c.kind = kind(f.uint8())
	switch c.kind {
	case kindBegin:
		c.lsn = LSN(f.uint64())
		f.uint64() // when
		c.xid = f.uint32()
	case kindCommit:
		f.uint8() // flags
		c.lsn = LSN(f.uint64())
		c.end = LSN(f.uint64())
		f.uint64() // when
	case kindInsert:
		c.relation = f.uint32()
		if f.uint8() != 'N' {
			f.fault = true
		}
		c.tuple = readTuple(&f)
	case kindUpdate:
		c.relation = f.uint32()
		part := f.uint8()
		if part == 'K' || part == 'O' {
			old := readTuple(&f)
			if err := old.skip(&f); err != nil {
				return c, err
			}
			part = f.uint8()
		}
		if part != 'N' {
			f.fault = true
		}
		c.tuple = readTuple(&f)
	case kindDelete:
		c.relation = f.uint32()
	case kindMessage:
		c.transactional = f.uint8()&1 != 0
		c.lsn = LSN(f.uint64())
		c.prefix = f.text()
		c.content = f.take(int(f.uint32()))
	case kindRelation, kindType, kindOrigin, kindTruncate:
		// Nothing of these is needed here.
	default:
		return c, fmt.Errorf("pgoutput sent a message of the unknown kind %q", byte(c.kind))
	}
	if f.fault {
		return c, errCut
	}
	return c, nil
}

func readTuple(f *fields) tuple {
	n := int(f.uint16())
	return tuple{n, f.data}
}

// skip moves f behind the tuple that it stands before.
func (t tuple) skip(f *fields) error {
	for range t.columns {
		if _, err := t.next(); err != nil {
			return err
		}
	}
	f.data = t.data
	return nil
}

// next returns the next column of a tuple that has one.
func (t *tuple) next() (v value, err error) {
	if len(t.data) == 0 {
		return v, errCut
	}
	v.format = t.data[0]
	rest := t.data[1:]
	switch v.format {
	case formatNull, formatUnchanged:
	case formatText, formatBinary:
		if len(rest) < 4 {
			return v, errCut
		}
		n := binary.BigEndian.Uint32(rest)
		rest = rest[4:]
		if uint64(n) > uint64(len(rest)) {
			return v, errCut
		}
		v.data = rest[:n:n]
		rest = rest[n:]
	default:
		return v, fmt.Errorf("pgoutput sent a column in the unknown format %q", v.format)
	}
	t.data = rest
	return v, nil
}

// decodeRelation reads a relation message into memory of its own.
func decodeRelation(data []byte) (r relation, err error) {
	f := fields{data: data}
	if kind(f.uint8()) != kindRelation {
		return r, errors.New("not a relation message")
	}
	r.id = f.uint32()
	r.namespace = string(f.text())
	r.name = string(f.text())
	f.uint8() // replica identity
	n := int(f.uint16())
	for range n {
		f.uint8() // part of the key
		name := string(f.text())
		oid := f.uint32()
		f.uint32() // type modifier
		if f.fault {
			break
		}
		r.columns = append(r.columns, column{name, oid})
	}
	if f.fault {
		return r, errCut
	}
	return r, nil
}
