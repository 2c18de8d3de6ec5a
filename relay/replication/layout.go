package replication

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay/internal/messages"
	"github.com/pgoutbox/outbox/relay/internal/wal"
)

// layout maps the columns of one relation message to those of a message. The log sends that message again when the
// table has changed, so columns may move, appear and disappear while the log is read.
type layout struct {
	steps []step // one for each column of the relation
}

// step tells what to do with a column.
type step struct {
	name  string
	index int // in a row of polling.MessageColumns, or one of the constants below
	read  reading
}

const (
	leaveOut    = -1
	transaction = -2 // the column xid
)

// reading converts a value of the log to the binary format of a column of outbox.messages.
type reading func(v wal.Field, scratch []byte) (converted, newScratch []byte, err error)

// Types, by their oids in the catalogue.
const (
	oidBytea       = 17
	oidName        = 19
	oidInt8        = 20
	oidInt2        = 21
	oidInt4        = 23
	oidText        = 25
	oidJSON        = 114
	oidBpchar      = 1042
	oidVarchar     = 1043
	oidTimestamp   = 1114
	oidTimestamptz = 1184
	oidUUID        = 2950
	oidJSONB       = 3802
	oidXid8        = 5069
)

// columns are the positions of the columns in a row that becomes a delivery.
type columns struct {
	names                                             []string
	id, messageID, topic, key, aggregateID, createdAt int
	payload, headers, shard, deliverAt                int

	texts []int
}

func newColumns() columns {
	names := messages.ColumnNames()
	at := func(name string) int { return slices.Index(names, name) }
	return columns{names: names, id: at("id"), messageID: at("message_id"), topic: at("topic"), key: at("key"),
		aggregateID: at("aggregate_id"), createdAt: at("created_at"), payload: at("payload"), headers: at("headers"),
		shard: at("shard"), deliverAt: at("deliver_at"),
		texts: []int{at("topic"), at("key"), at("aggregate_type"), at("aggregate_id"), at("event_type"), at("content_type"), at("headers")}}
}

// newLayout finds the columns of a message by their names.
func newLayout(r *wal.Relation, c *columns) (*layout, error) {
	l := &layout{}
	found := make(map[string]bool)
	var faults []error
	for _, col := range r.Columns {
		s := step{name: col.Name, index: slices.Index(c.names, col.Name)}
		want := kindOf(col.Name)
		switch {
		case col.Name == "xid":
			s.index = transaction
		case s.index < 0 || col.Name == "shard":
			s.index = leaveOut
		}
		if s.index != leaveOut {
			if s.read = readingOf(want, col.OID); s.read == nil {
				faults = append(faults, fmt.Errorf("column %s has a type (oid %d) that can't be read as %s", col.Name, col.OID, want))
			}
		}
		found[col.Name] = true
		l.steps = append(l.steps, s)
	}
	for _, name := range []string{"xid", "id", "message_id", "topic", "created_at"} {
		if !found[name] {
			faults = append(faults, fmt.Errorf("there is no column %s in what the publication sends", name))
		}
	}
	if len(faults) > 0 {
		return nil, dial.Permanent("outbox.messages is not as the schema has it: %w: look at the table and at the column list "+
			"of the publication, and run: outbox check", errors.Join(faults...))
	}
	return l, nil
}

func kindOf(name string) string {
	switch name {
	case "id":
		return "bigint"
	case "xid":
		return "xid8"
	case "message_id":
		return "uuid"
	case "payload":
		return "bytea"
	case "headers":
		return "json"
	case "deliver_at", "created_at":
		return "timestamptz"
	}
	return "text"
}

func readingOf(want string, oid uint32) reading {
	textual := oid == oidText || oid == oidVarchar || oid == oidBpchar || oid == oidName || oid == oidJSON
	switch want {
	case "bigint":
		if oid == oidInt8 || oid == oidInt4 || oid == oidInt2 {
			return readInteger
		}
	case "xid8":
		if oid == oidXid8 || oid == oidInt8 {
			return readInteger
		}
	case "uuid":
		if oid == oidUUID {
			return readBinary
		}
	case "timestamptz":
		if oid == oidTimestamptz || oid == oidTimestamp {
			return readBinary
		}
	case "bytea", "text", "json":
		switch {
		case textual:
			return readBytes
		case oid == oidBytea && want == "bytea":
			return readBinary
		case oid == oidJSONB:
			return readJSONB
		case want == "text" && oid == oidUUID:
			return readUUIDText
		case want == "text" && (oid == oidInt8 || oid == oidInt4 || oid == oidInt2):
			return readIntegerText
		}
	}
	return nil
}

var errFormat = errors.New("a value came in text format")

func readBytes(v wal.Field, scratch []byte) ([]byte, []byte, error) { return v.Data, scratch, nil }

func readBinary(v wal.Field, scratch []byte) ([]byte, []byte, error) {
	if v.Format != wal.FormatBinary {
		return nil, scratch, errFormat
	}
	return v.Data, scratch, nil
}

// readJSONB reads a jsonb in binary format: a version and the text.
func readJSONB(v wal.Field, scratch []byte) ([]byte, []byte, error) {
	if v.Format != wal.FormatBinary || len(v.Data) == 0 {
		return nil, scratch, errFormat
	}
	return v.Data[1:], scratch, nil
}

func integer(v wal.Field) (int64, error) {
	if v.Format == wal.FormatBinary {
		switch len(v.Data) {
		case 8:
			return int64(binary.BigEndian.Uint64(v.Data)), nil
		case 4:
			return int64(int32(binary.BigEndian.Uint32(v.Data))), nil
		case 2:
			return int64(int16(binary.BigEndian.Uint16(v.Data))), nil
		}
	}
	return 0, errFormat
}

func readInteger(v wal.Field, scratch []byte) ([]byte, []byte, error) {
	if len(v.Data) == 8 && v.Format == wal.FormatBinary {
		return v.Data, scratch, nil
	}
	n, err := integer(v)
	from := len(scratch)
	scratch = binary.BigEndian.AppendUint64(scratch, uint64(n))
	return scratch[from:], scratch, err
}

func readIntegerText(v wal.Field, scratch []byte) ([]byte, []byte, error) {
	n, err := integer(v)
	from := len(scratch)
	scratch = strconv.AppendInt(scratch, n, 10)
	return scratch[from:], scratch, err
}

func readUUIDText(v wal.Field, scratch []byte) ([]byte, []byte, error) {
	if v.Format != wal.FormatBinary || len(v.Data) != 16 {
		return nil, scratch, errFormat
	}
	from := len(scratch)
	scratch, _ = outbox.ID(v.Data).AppendText(scratch) // it never fails
	return scratch[from:], scratch, nil
}

// row is what a layout fills: the columns of a message in binary format, nil for NULL. It belongs to one reader. Its
// values point into the decoded message or into scratch.
type row struct {
	columns columns
	values  [][]byte
	xid     uint64
	scratch []byte
	texts   [][]byte // of utf8
}

func newRow() *row {
	c := newColumns()
	return &row{columns: c, values: make([][]byte, len(c.names))}
}

func (r *row) reset() {
	clear(r.values)
	r.xid, r.scratch = 0, r.scratch[:0]
}

// fill reads a tuple into r.
func (l *layout) fill(r *row, t wal.Tuple) error {
	r.reset()
	if t.Columns != len(l.steps) {
		return fmt.Errorf("a row has %d columns and its table %d", t.Columns, len(l.steps))
	}
	for i := range l.steps {
		s := &l.steps[i]
		v, err := t.Next()
		if err != nil {
			return err
		}
		if v.Format == wal.FormatNull || s.index == leaveOut {
			continue
		}
		if v.Format == wal.FormatUnchanged {
			return fmt.Errorf("column %s of an insert was not sent", s.name)
		}
		var converted []byte
		if converted, r.scratch, err = s.read(v, r.scratch); err != nil {
			return fmt.Errorf("column %s: %w", s.name, err)
		}
		if converted == nil {
			converted = []byte{} // empty is not NULL
		}
		if s.index == transaction {
			r.xid = binary.BigEndian.Uint64(converted)
			continue
		}
		r.values[s.index] = converted
	}
	r.fillShard()
	return nil
}

// fillShard computes the shard, which the log leaves out, from the ordering key.
func (r *row) fillShard() {
	name := r.values[r.columns.key]
	if len(name) == 0 {
		name = r.values[r.columns.aggregateID]
	}
	from := len(r.scratch)
	if len(name) == 0 && len(r.values[r.columns.messageID]) == 16 {
		r.scratch, _ = outbox.ID(r.values[r.columns.messageID]).AppendText(r.scratch)
		name = r.scratch[from:]
	}
	shard := shardOf(name)
	from = len(r.scratch)
	r.scratch = binary.BigEndian.AppendUint16(r.scratch, shard)
	r.values[r.columns.shard] = r.scratch[from:]
}
