package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// The messages of the plugin pgoutput, protocol version 1, are decoded in place: a decoded message points into the
// bytes that it was decoded from. Format: "Logical Replication Message Formats" in PostgreSQL's manual.

// Kind is the first byte of a message.
type Kind byte

const (
	KindBegin     Kind = 'B'
	KindCommit    Kind = 'C'
	KindRelation  Kind = 'R'
	KindInsert    Kind = 'I'
	KindMessage   Kind = 'M'
	KindKeepalive Kind = 'k' // not of the plugin, but of the stream

	kindOrigin   Kind = 'O'
	kindType     Kind = 'Y'
	kindUpdate   Kind = 'U'
	kindDelete   Kind = 'D'
	kindTruncate Kind = 'T'
)

// Change is an entry of the log: a decoded message, or a keepalive. Its kind determines which fields are set.
type Change struct {
	Kind Kind

	// For begin: the position of the transaction's commit record. For commit: the same, and the end of that record. For
	// a logical message: its position. For a keepalive: the position up to which everything was sent.
	LSN, End LSN

	XID uint32 // for begin: the transaction

	Table *Relation // of a relation message, in memory of its own

	Relation uint32 // of an insert
	Row      Tuple

	// Of a logical message.
	Transactional bool
	Prefix        []byte
	Content       []byte
}

// Relation is what a relation message contains about a table.
type Relation struct {
	ID        uint32
	Namespace string
	Name      string
	Columns   []Column
}

type Column struct {
	Name     string
	OID      uint32 // of its type, when the row was written
	Modifier int32
}

// Tuple is a row whose columns are still to be read.
type Tuple struct {
	Columns int
	data    []byte
}

// Field is one column of a tuple.
type Field struct {
	Format byte // one of the constants
	Data   []byte
}

const (
	FormatNull      = 'n'
	FormatUnchanged = 'u' // an out-of-line value that an update has not changed: it isn't sent
	FormatText      = 't'
	FormatBinary    = 'b'
)

var errCut = errors.New("a message of pgoutput is cut off")

// Parser reads numbers and texts in sequence. After the first fault it returns zeros.
type Parser struct {
	Data  []byte
	Fault bool
}

func (f *Parser) Take(n int) []byte {
	if n < 0 || len(f.Data) < n {
		f.Fault, f.Data = true, nil
		return nil
	}
	taken := f.Data[:n:n]
	f.Data = f.Data[n:]
	return taken
}

func (f *Parser) Uint8() byte {
	if b := f.Take(1); b != nil {
		return b[0]
	}
	return 0
}

func (f *Parser) Uint16() uint16 {
	if b := f.Take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (f *Parser) Uint32() uint32 {
	if b := f.Take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (f *Parser) Uint64() uint64 {
	if b := f.Take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// Text reads up to a zero byte.
func (f *Parser) Text() []byte {
	i := bytes.IndexByte(f.Data, 0)
	if i < 0 {
		f.Fault, f.Data = true, nil
		return nil
	}
	b := f.Data[:i:i]
	f.Data = f.Data[i+1:]
	return b
}

// Decode reads one message.
func Decode(data []byte) (c Change, err error) {
	f := Parser{Data: data}
	c.Kind = Kind(f.Uint8())
	switch c.Kind {
	case KindBegin:
		c.LSN = LSN(f.Uint64())
		f.Uint64() // when
		c.XID = f.Uint32()
	case KindCommit:
		f.Uint8() // flags
		c.LSN = LSN(f.Uint64())
		c.End = LSN(f.Uint64())
		f.Uint64() // when
	case KindInsert:
		c.Relation = f.Uint32()
		if f.Uint8() != 'N' {
			f.Fault = true
		}
		c.Row = Tuple{int(f.Uint16()), f.Data}
	case KindMessage:
		c.Transactional = f.Uint8()&1 != 0
		c.LSN = LSN(f.Uint64())
		c.Prefix = f.Text()
		c.Content = f.Take(int(f.Uint32()))
	case KindRelation:
		c.Table = readRelation(&f)
	case kindType, kindOrigin, kindTruncate, kindUpdate, kindDelete:
		// The other kinds are not needed.
	default:
		return c, fmt.Errorf("pgoutput sent a message of the unknown kind %q", byte(c.Kind))
	}
	if f.Fault {
		return c, errCut
	}
	return c, nil
}

func readRelation(f *Parser) *Relation {
	r := &Relation{ID: f.Uint32(), Namespace: string(f.Text()), Name: string(f.Text())}
	f.Uint8() // replica identity
	for n := f.Uint16(); n > 0 && !f.Fault; n-- {
		f.Uint8() // part of the key
		r.Columns = append(r.Columns, Column{string(f.Text()), f.Uint32(), int32(f.Uint32())})
	}
	return r
}

// Next returns the next column. The tuple must have one left.
func (t *Tuple) Next() (v Field, err error) {
	if len(t.data) == 0 {
		return v, errCut
	}
	v.Format = t.data[0]
	rest := t.data[1:]
	switch v.Format {
	case FormatNull, FormatUnchanged:
	case FormatText, FormatBinary:
		if len(rest) < 4 {
			return v, errCut
		}
		n := binary.BigEndian.Uint32(rest)
		rest = rest[4:]
		if uint64(n) > uint64(len(rest)) {
			return v, errCut
		}
		v.Data = rest[:n:n]
		rest = rest[n:]
	default:
		return v, fmt.Errorf("pgoutput sent a column in the unknown format %q", v.Format)
	}
	t.data = rest
	return v, nil
}
