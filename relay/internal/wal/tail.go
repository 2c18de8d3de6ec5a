package wal

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/mapping"
)

// Tail reads the inserts into one table from the write-ahead log, in the order of commits. Its only memory is the slot,
// which stands at a commit. So if only a part of a transaction was settled, the whole transaction comes again.
//
// One goroutine reads; any goroutine may call Settled and Close.
type Tail struct {
	stream  *Stream
	cfg     TailConfig
	sent    *sent     // by the last look
	watched time.Time // when Sound last looked at the slot
	changed uint32    // sent.changed, when the stream was opened

	// Only the reader uses the rest.
	tables     map[uint32]*Relation // nil: another table
	xid        uint32               // the transaction that is being read
	values     []Value
	texts      [][]byte // of values
	each       func(*Insert) error
	read, most int // inserts, by this Read

	mu       sync.Mutex
	progress *Progress
	unsent   error // nothing more is read

	life  context.Context
	stop  context.CancelFunc
	ended chan struct{}
}

// TailConfig configures a Tail. All fields but Unsent are required.
type TailConfig struct {
	Slot        string // must exist; see mapping.CreateSlotSQL
	Publication string // must exist; see mapping.CreatePublicationSQL
	Table       mapping.TableName
	OID         uint32       // of the table: it may have had another name when a row was written
	Logger      *slog.Logger // gets a warning when the slot retains too much of the log
	Unsent      *Unsent      // the last one that was returned for this slot
}

// Insert is a row that was inserted. It is valid until the function that gets it returns.
type Insert struct {
	Number uint64    // consecutive, from 1; for Settled
	Table  *Relation // as it was when the row was written; the same pointer until the table is changed
	Values []Value
}

// Value is a column as text, in the format of the server's output with the settings of package dial, in UTC.
type Value struct {
	Null  bool
	Text  []byte
	Fault error // why the text has no UTF-8 form; then Text is an escaped form
}

// OpenTail begins to stream at the slot's position. It ends a stream that another relay has left, so the caller must
// know that no other relay reads the slot.
//
// It creates neither slot nor publication: a new slot would hide that the former one is gone, and what was committed
// since is lost. Errors that waiting doesn't cure are marked by outbox.Permanent. An Unsent is
// to be given to the next call.
func OpenTail(ctx context.Context, conn *pgx.ConnConfig, cfg TailConfig) (*Tail, error) {
	at := conn.Copy()
	if at.RuntimeParams == nil {
		at.RuntimeParams = make(map[string]string)
	}
	at.RuntimeParams["client_encoding"], at.RuntimeParams["TimeZone"] = "UTF8", "UTC"
	at.RuntimeParams["client_min_messages"] = "warning" // see unpublished
	t := &Tail{cfg: cfg, tables: make(map[uint32]*Relation), ended: make(chan struct{})}
	server := Server{at, cfg.Table.String()}
	plain, err := server.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer dial.HangUp(plain)
	asking, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	var position LSN
	if t.sent, position, err = streamable(asking, plain, cfg); err != nil {
		return nil, remember(asking, plain, cfg, err)
	}
	t.changed = t.sent.changed
	every, err := StatusInterval(asking, plain)
	if err != nil {
		return nil, err
	}
	t.progress = NewProgress(Mark{Position: position})
	// The stream of a dead relay ends by itself, after the server has read what the relay had settled.
	patience := time.Now().Add(time.Second)
	t.stream, err = Open(ctx, server,
		Config{Slot: cfg.Slot, Publication: cfg.Publication, Options: ", messages 'true'", From: position,
			Lock: &t.mu, StatusInterval: every,
			Warned: func(warning error) error { return t.unpublished(warning, "55000") },
			Busy: func(ctx context.Context) error {
				if time.Now().Before(patience) {
					return nil
				}
				return server.Evict(ctx, plain, cfg.Slot)
			}})
	if err != nil {
		return nil, err
	}
	t.life, t.stop = context.WithCancel(context.Background())
	go t.keepAlive(min(every, time.Second))
	return t, nil
}

// keepAlive sends statuses to the server, also while no goroutine reads.
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

// Settled notes that the inserts up to number are done, and tells the server.
func (t *Tail) Settled(number uint64) error {
	t.mu.Lock()
	t.progress.Settle(number)
	t.mu.Unlock()
	return t.confirm(false)
}

// Read calls each for the next inserts, at most limit, and returns how many there were. It waits until there is one, at
// most a second. An error of each ends the stream.
func (t *Tail) Read(ctx context.Context, limit int, each func(*Insert) error) (n int, err error) {
	t.each, t.read, t.most = each, 0, limit
	n, err = t.stream.Read(ctx, (*taker)(t))
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if unsent := t.unpublished(err, "42704"); unsent != nil {
			err = unsent
		}
	}
	return n, err
}

// taker is a Tail that reads. It also reads beyond the limit, up to the next insert, because the end of a transaction
// lets the position move.
type taker Tail

func (t *taker) Full() bool { return t.read >= t.most }

func (t *taker) Take(c *Change) (inserted bool, err error) {
	if t.unsent != nil {
		return false, t.unsent // also at the end: the place that shows it must not be confirmed
	}
	t.progress.Note(c)
	switch c.Kind {
	case KindBegin:
		t.xid = c.XID
	case KindMessage:
		if c.Transactional && string(c.Prefix) == unsentPrefix {
			return false, (*Tail)(t).older()
		}
	case KindRelation:
		t.tables[c.Table.ID] = nil
		if c.Table.ID == t.cfg.OID || c.Table.Namespace == t.cfg.Table.Schema && c.Table.Name == t.cfg.Table.Name {
			t.tables[c.Table.ID] = c.Table
		}
	case KindInsert: // updates and deletes are of no interest
		table := t.tables[c.Relation]
		switch {
		case table == nil:
		case t.Full():
			return false, ErrFull
		case (*Tail)(t).older() != nil:
			return false, t.unsent
		default:
			t.read++
			return true, (*Tail)(t).insert(table, c.Row)
		}
	}
	return false, nil
}

func (t *Tail) insert(table *Relation, row Tuple) error {
	if row.Columns != len(table.Columns) {
		return fmt.Errorf("a row has %d columns and its table %d", row.Columns, len(table.Columns))
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
	return t.each(&Insert{Number: t.progress.Deliver(), Table: table, Values: t.values})
}

// ending is a Tail that reads the end of a transaction whose messages are all settled; otherwise the transaction would
// come again.
type ending struct {
	*taker
	more bool // there was another insert: it comes again with the rest
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

// Close confirms what is settled and ends the stream regularly. No goroutine may be reading.
func (t *Tail) Close() error {
	t.stop()
	<-t.ended
	t.most = 0
	_, _ = t.stream.Read(context.Background(), &ending{taker: (*taker)(t)}) // if it fails, the rest comes again
	err := t.confirm(true)
	t.stream.Part()
	return err
}
