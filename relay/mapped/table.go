package mapped

import (
	"fmt"
	"hash/fnv"
	"sync/atomic"

	"github.com/pgoutbox/outbox/mapping"
)

// table is a mapping that fits a table, as pieces of SQL. In statements the table is m.
type table struct {
	mapping mapping.Mapping
	info    *mapping.Table

	name    string // quoted
	id      string // m."id"
	idType  string // to cast a text to the type of id
	columns string // what decode reads
	keyed   string // the same without texts, except the key
	bare    string // the same without any text
	waiting string // a row that is not done
	order   string // ORDER BY
	along   along
	by      string // the column m."column" that order follows, if it can be bounded
	headers []string
	jsonish bool // the payload is JSON and has no column for its content type

	dead  *mapping.Table
	lacks string // what the role may not do, of what a dead letter takes

	layout int64  // of the mapped columns, see layoutSQL
	zone   string // see zoneSQL

	follows *atomic.Bool // triggers run after a mark, so what they leave is looked at

	controlled bool // outbox.controls is there, and may be read
	recorded   bool // outbox.brokers is there, and may be written to
}

// along is what the order of rows says about rows that are still to be committed.
type along uint8

const (
	alongNothing  along = iota // they can appear anywhere
	alongTime                  // they appear late, in the order in which their transactions began
	alongSequence              // they appear at the end, except those of open transactions
)

// ordered is the column that order follows.
func (t *table) ordered() *mapping.TableColumn { return t.info.Column(unqualified(t.by)) }

// lock is the pair of numbers of the table's advisory lock.
func (t *table) lock() string {
	switch l := t.mapping.Lock; len(l) {
	case 1:
		return fmt.Sprintf("%d::bigint", l[0])
	case 2:
		return fmt.Sprintf("%d::integer, %d::integer", int32(l[0]), int32(l[1]))
	}
	return fmt.Sprintf("%d::bigint", int64(hash64("pgoutbox\x00"+t.info.Schema+"\x00"+t.info.Name)))
}

// nameLock is the advisory lock of a relay's name.
func (t *table) nameLock(name string) string {
	return fmt.Sprintf("%d::bigint", int64(hash64("pgoutbox relay\x00"+t.info.Schema+"\x00"+t.info.Name+"\x00"+name)))
}

func hash64(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // it never fails
	return h.Sum64()
}

// numbered reports whether ids are whole numbers.
func (t *table) numbered() bool { return t.info.Column(t.mapping.ID).Kind == mapping.KindInteger }

// presence is the advisory lock by which a relay finds out whether there are others.
func (t *table) presence() string {
	return fmt.Sprintf("%d::bigint", int64(hash64("pgoutbox lease\x00"+t.info.Schema+"\x00"+t.info.Name)))
}

func (t *table) errChanged() error {
	return fmt.Errorf("the columns of table %s, or of its dead letters, were changed, or it was truncated or rewritten: "+
		"the session ends, and the next one reads it from the beginning",
		t.name)
}

// errUndone is the error of rows that were there and could be marked, and yet don't have their marks.
func (t *table) errUndone() error {
	return fmt.Errorf("table %s doesn't keep the marks of its rows, so they would be sent again and again: one of its triggers undoes "+
		"them, by RETURN OLD, by RETURN NULL, or by setting the column back: have it let the relay's changes pass. Then the "+
		"relay goes on by itself", t.name)
}
