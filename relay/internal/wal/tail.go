package wal

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay/internal/dial"
)

// Tail reads what is inserted into one table from the write-ahead log, in the order of commits. Its slot is all it
// has to remember by: where that stands is a commit, so what was settled of a transaction comes again with the
// rest of it.
//
// One goroutine reads; any may call Settled and Close.
type Tail struct {
	stream  *Stream
	cfg     TailConfig
	oid     uint32    // of the publication
	watched time.Time // of Sound: when the slot was looked at

	// Of the reader.
	tables     map[uint32][]string // the columns, by relation; nil: another table
	values     []Value
	texts      [][]byte // of values
	each       func(*Insert) error
	read, most int // inserts, by this Read

	mu       sync.Mutex
	progress *Progress

	life  context.Context
	stop  context.CancelFunc
	ended chan struct{}
}

// TailConfig says what a Tail reads. All fields are required.
type TailConfig struct {
	Name        string // of the stream, for people who look at pg_stat_activity
	Slot        string // it is there already; see mapping.CreateSlotSQL
	Publication string // the same; see mapping.CreatePublicationSQL
	Table       mapping.TableName
	Logger      *slog.Logger // is warned when the slot keeps too much of the log
}

// Insert is a row that was inserted. What it points to lasts until the function returns that it was given to.
type Insert struct {
	Number  uint64   // consecutive, from 1; for Settled
	Columns []string // the same slice until the table is changed
	Values  []Value
}

// Value is a column as text, in the format of the server's output with the settings of the role.
type Value struct {
	Null  bool
	Text  []byte
	Fault error // why the text has no UTF-8 form; Text is an escaped one then
}

// OpenTail begins to stream where the slot stands. A stream of a relay that is left over there is ended, so the
// caller has to know that no other relay reads the slot.
//
// It makes neither slot nor publication: a new slot would hide that the former is gone, and with it what was
// committed meanwhile. What waiting doesn't cure is marked by outbox.Permanent.
func OpenTail(ctx context.Context, conn *pgx.ConnConfig, cfg TailConfig) (*Tail, error) {
	at := conn.Copy()
	if at.RuntimeParams == nil {
		at.RuntimeParams = make(map[string]string)
	}
	at.RuntimeParams["client_encoding"], at.RuntimeParams["DateStyle"], at.RuntimeParams["bytea_output"] = "UTF8", "ISO", "hex"
	t := &Tail{cfg: cfg, tables: make(map[uint32][]string), ended: make(chan struct{})}
	server := Server{at, cfg.Name}
	plain, err := server.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer dial.HangUp(plain)
	if err := RefuseLevel(ctx, plain); err != nil {
		return nil, err
	}
	if t.oid, err = publishes(ctx, plain, cfg); err != nil {
		return nil, err
	}
	position, err := slotStands(ctx, plain, cfg)
	if err != nil {
		return nil, err
	}
	every, err := StatusInterval(ctx, plain)
	if err != nil {
		return nil, err
	}
	t.progress = NewProgress(Mark{Position: position})
	// A stream whose relay has died ends by itself, after the server has read what the relay had settled.
	patience := time.Now().Add(time.Second)
	t.stream, err = Open(ctx, server, Config{Slot: cfg.Slot, Publication: cfg.Publication, From: position, Lock: &t.mu, StatusInterval: every,
		Busy: func(ctx context.Context) error {
			if time.Now().Before(patience) {
				return nil
			}
			return Evict(ctx, plain, cfg.Slot)
		}})
	if err != nil {
		return nil, err
	}
	t.life, t.stop = context.WithCancel(context.Background())
	go t.keepAlive(min(every, time.Second))
	return t, nil
}

// keepAlive tells the server that somebody is there, also while nobody reads.
func (t *Tail) keepAlive(every time.Duration) {
	defer close(t.ended)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-t.life.Done():
			return
		case <-ticker.C:
		}
		if t.confirm(true) != nil {
			return
		}
	}
}

// confirm tells the server how far everything is settled.
func (t *Tail) confirm(now bool) error {
	t.mu.Lock()
	position := t.progress.Position
	t.mu.Unlock()
	return t.stream.Confirm(position, now)
}

// Settled notes that the inserts up to number need not come again, and tells the server.
func (t *Tail) Settled(number uint64) error {
	t.mu.Lock()
	t.progress.Settle(number)
	t.mu.Unlock()
	return t.confirm(false)
}

// Read calls each for the next inserts, at most limit, and returns how many there were. It waits until something has
// come, at most a second. An error of each ends the stream.
func (t *Tail) Read(ctx context.Context, limit int, each func(*Insert) error) (n int, err error) {
	t.each, t.read, t.most = each, 0, limit
	return t.stream.Read(ctx, (*taker)(t))
}

// taker is a Tail that reads. Beyond the limit too, up to the next insert: the end of a transaction lets the position
// go on.
type taker Tail

func (t *taker) Full() bool { return t.read >= t.most }

func (t *taker) Take(c *Change) (inserted bool, err error) {
	t.progress.Note(c)
	switch c.Kind {
	case KindRelation:
		t.tables[c.Table.ID] = nil
		if c.Table.Namespace == t.cfg.Table.Schema && c.Table.Name == t.cfg.Table.Name {
			for _, column := range c.Table.Columns {
				t.tables[c.Table.ID] = append(t.tables[c.Table.ID], column.Name)
			}
		}
	case KindInsert: // what is updated and deleted is its author's affair
		columns := t.tables[c.Relation]
		switch {
		case columns == nil:
		case t.Full():
			return false, ErrFull
		default:
			t.read++
			return true, (*Tail)(t).insert(columns, c.Row)
		}
	}
	return false, nil
}

func (t *Tail) insert(columns []string, row Tuple) error {
	if row.Columns != len(columns) {
		return fmt.Errorf("a row has %d columns and its table %d", row.Columns, len(columns))
	}
	t.values, t.texts = t.values[:0], t.texts[:0]
	for range row.Columns {
		v, err := row.Next()
		if err != nil {
			return err
		}
		t.values, t.texts = append(t.values, Value{Null: v.Format == FormatNull}), append(t.texts, v.Data)
	}
	faults, err := t.stream.UTF8(t.life, t.texts)
	if err != nil {
		return err
	}
	for i, text := range t.texts {
		t.values[i].Text, t.values[i].Fault = text, faults[i]
	}
	t.progress.Next()
	return t.each(&Insert{Number: t.progress.Deliver(), Columns: columns, Values: t.values})
}

// ending is a Tail that reads the end of a transaction of which everything is settled, or it would come again.
type ending struct {
	*taker
	more bool // another insert: it comes again with the rest
}

func (e *ending) Full() bool { return e.more || !e.progress.Open || !e.progress.Idle() }

func (e *ending) Take(c *Change) (bool, error) {
	if e.Full() {
		return false, ErrFull
	}
	_, err := e.taker.Take(c)
	e.more = err != nil
	return false, err
}

// Abort ends the connection as a crash does. For tests, and for a caller that has lost the right to the slot.
func (t *Tail) Abort() {
	t.stop()
	<-t.ended
	t.stream.Abort()
}

// Close confirms what is settled and ends the stream in good order. Nobody reads any more.
func (t *Tail) Close() error {
	t.stop()
	<-t.ended
	t.most = 0
	_, _ = t.stream.Read(context.Background(), &ending{taker: (*taker)(t)}) // without it the rest comes again
	err := t.confirm(true)
	t.stream.Part()
	return err
}
