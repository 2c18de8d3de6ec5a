// Package existing is the table of a mapping as a relay reads it: its columns and its order as pieces of SQL, and its
// rows, from the table or from the log, as messages. It knows no strategy.
package existing

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync/atomic"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// Table is a mapping that fits a table, as pieces of SQL. In statements the table is m.
type Table struct {
	Mapping mapping.Mapping
	Info    *mapping.Table

	Name    string // quoted
	ID      string // m."id"
	IDType  string // to cast a text to the type of id
	Columns string // what decode reads
	keyed   string // the same without texts, except the key
	bare    string // the same without any text
	Waiting string // a row that is not done
	Order   string // ORDER BY
	Along   Along
	By      string // the column m."column" that order follows, if it can be bounded
	headers []string
	jsonish bool // the payload is JSON and has no column for its content type

	Dead  *mapping.Table
	lacks string // what the role may not do, of what a dead letter takes

	layout int64  // of the mapped columns, see layoutSQL
	zone   string // see zoneSQL

	Follows *atomic.Bool // triggers run after a mark, so what they leave is looked at

	Controlled bool // outbox.controls is there, and may be read
	Recorded   bool // outbox.brokers is there, and may be written to
}

// Along is what the order of rows says about rows that are still to be committed.
type Along uint8

const (
	AlongNothing  Along = iota // they can appear anywhere
	AlongTime                  // they appear late, in the order in which their transactions began
	AlongSequence              // they appear at the end, except those of open transactions
)

// Ordered is the column that order follows.
func (t *Table) Ordered() *mapping.TableColumn { return t.Info.Column(Unqualified(t.By)) }

// Lock is the pair of numbers of the table's advisory lock.
func (t *Table) Lock() string {
	switch l := t.Mapping.Lock; len(l) {
	case 1:
		return fmt.Sprintf("%d::bigint", l[0])
	case 2:
		return fmt.Sprintf("%d::integer, %d::integer", int32(l[0]), int32(l[1]))
	}
	return fmt.Sprintf("%d::bigint", int64(hash64("pgoutbox\x00"+t.Info.Schema+"\x00"+t.Info.Name)))
}

// NameLock is the advisory lock of a relay's name.
func (t *Table) NameLock(name string) string {
	return fmt.Sprintf("%d::bigint", int64(hash64("pgoutbox relay\x00"+t.Info.Schema+"\x00"+t.Info.Name+"\x00"+name)))
}

func hash64(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // it never fails
	return h.Sum64()
}

// Numbered reports whether ids are whole numbers.
func (t *Table) Numbered() bool { return t.Info.Column(t.Mapping.ID).Kind == mapping.KindInteger }

// Presence is the advisory lock by which a relay finds out whether there are others.
func (t *Table) Presence() string {
	return fmt.Sprintf("%d::bigint", int64(hash64("pgoutbox lease\x00"+t.Info.Schema+"\x00"+t.Info.Name)))
}

func (t *Table) errChanged() error {
	return fmt.Errorf("the columns of table %s, or of its dead letters, were changed, or it was truncated or rewritten: "+
		"the session ends, and the next one reads it from the beginning",
		t.Name)
}

// ReadTable reads a table's description from the catalogue.
func ReadTable(ctx context.Context, q schema.Querier, table string) (*mapping.Table, error) {
	name, err := mapping.ParseTableName(table)
	if err != nil {
		return nil, outbox.Permanent(err)
	}
	info, err := mapping.ReadTable(ctx, q, name)
	return info, permanentMapping(err)
}

// ErrUndone is the error of rows that were there and could be marked, and yet don't have their marks.
func (t *Table) ErrUndone() error {
	return fmt.Errorf("table %s doesn't keep the marks of its rows, so they would be sent again and again: one of its triggers undoes "+
		"them, by RETURN OLD, by RETURN NULL, or by setting the column back: have it let the relay's changes pass. Then the "+
		"relay goes on by itself", t.Name)
}
