package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/mapping"
)

// Tail reads what is inserted into one table from the write-ahead log, in the order of commits. Its slot is all it
// has to remember by: where that stands is a commit, so what was settled of a transaction comes again with the
// rest of it.
//
// One goroutine reads; any may call Settled and Close.
type Tail struct {
	source    *Source
	wire      *wire
	cfg       TailConfig
	oid       uint32               // of the publication
	watched   time.Time            // of Sound: when the slot was looked at
	relations map[uint32]*relation // nil: of another table
	values    []Value
	texts     [][]byte // of values
	charset   *charset
	pace      pace

	mu        sync.Mutex
	progress  *progress
	received  LSN
	confirmed LSN
	err       error // of a status that could not be sent

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
// committed meanwhile. Marked by outbox.Permanent, because waiting doesn't cure them, are ErrNoSlot,
// ErrPublication, ErrWALLevel, ErrNoReplication and ErrPooler.
func OpenTail(ctx context.Context, conn *pgx.ConnConfig, cfg TailConfig) (*Tail, error) {
	at := conn.Copy()
	if at.RuntimeParams == nil {
		at.RuntimeParams = make(map[string]string)
	}
	at.RuntimeParams["client_encoding"], at.RuntimeParams["DateStyle"], at.RuntimeParams["bytea_output"] = "UTF8", "ISO", "hex"
	t := &Tail{source: &Source{conn: at, destination: cfg.Name}, cfg: cfg, relations: make(map[uint32]*relation), ended: make(chan struct{})}
	plain, err := t.source.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer hangUp(plain)
	if err := t.source.preflight(ctx, plain); err != nil {
		return nil, err
	}
	if t.oid, err = publishes(ctx, plain, cfg); err != nil {
		return nil, err
	}
	position, err := slotStands(ctx, plain, cfg)
	if err != nil {
		return nil, err
	}
	var timeout int64
	if err := plain.QueryRow(ctx, `SELECT coalesce((SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'), 0)`).Scan(&timeout); err != nil {
		return nil, fmt.Errorf("ask for wal_sender_timeout: %w", err)
	}
	t.progress, t.received, t.confirmed = newProgress(position, partial{}), position, position
	if err := t.begin(ctx, plain, cfg); err != nil {
		return nil, err
	}
	t.life, t.stop = context.WithCancel(context.Background())
	go t.keepAlive(t.life, max(min(time.Duration(timeout)*time.Millisecond/3, time.Second), 10*time.Millisecond))
	return t, nil
}

func (t *Tail) begin(ctx context.Context, plain *pgx.Conn, cfg TailConfig) error {
	command := fmt.Sprintf("START_REPLICATION SLOT %s LOGICAL %s (proto_version '1', publication_names '%s')", cfg.Slot, t.confirmed, quoteList(cfg.Publication))
	// A stream whose relay has died ends by itself, after the server has read what the relay had settled.
	patience := time.Now().Add(time.Second)
	for {
		wal, err := t.source.connectWAL(ctx)
		if err != nil {
			return err
		}
		if t.charset, err = t.source.asStored(ctx, wal); err == nil {
			t.wire, err = takeOver(wal)
		}
		if err != nil {
			hangUpWAL(wal)
			return err
		}
		if err = t.wire.begin(ctx, command); err == nil {
			return nil
		}
		t.wire.close()
		if sqlState(err) != "55006" { // not: it is active
			return fmt.Errorf("start streaming from slot %q: %w", cfg.Slot, err)
		}
		if time.Now().After(patience) {
			if err := evict(ctx, plain, cfg.Slot); err != nil {
				return err
			}
		}
		if err := pauseFor(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// keepAlive tells the server that somebody is there, also while nobody reads.
func (t *Tail) keepAlive(ctx context.Context, every time.Duration) {
	defer close(t.ended)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if t.confirm() != nil {
			return
		}
	}
}

// confirm tells the server how far everything is settled.
func (t *Tail) confirm() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.confirmed = max(t.confirmed, t.progress.position)
		if err := t.wire.status(t.received, t.confirmed, false); err != nil {
			t.err = fmt.Errorf("confirm the position: %w", err)
		}
	}
	return t.err
}

// Settled notes that the inserts up to number need not come again, and tells the server.
func (t *Tail) Settled(number uint64) error {
	t.mu.Lock()
	t.progress.settle(number)
	news := t.progress.position > t.confirmed
	t.mu.Unlock()
	if !news {
		return nil
	}
	return t.confirm()
}

// Read calls each for the next inserts, at most limit, and returns how many there were. It waits until something has
// come, at most a second. An error of each ends the stream.
func (t *Tail) Read(ctx context.Context, limit int, each func(*Insert) error) (n int, err error) {
	until := time.Now().Add(tick)
	gathered := false // under load, more than was there
	for {
		parsed, err := t.parse(limit-n, each)
		if n += parsed; err != nil || n >= limit {
			return n, err
		}
		if mark := t.pace.mark(time.Now()); mark > 0 && !gathered && t.wire.low.set(mark) {
			gathered = true
			parsed, err := t.gather(limit-n, each)
			if n += parsed; err != nil {
				return n, err
			}
			continue
		}
		if n > 0 {
			t.pace.read(n, time.Now())
			return n, nil
		}
		t.wire.low.set(1)
		switch err := t.wire.fill(ctx, until); {
		case errors.Is(err, errTick):
			return 0, ctx.Err()
		case err != nil:
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			return 0, fmt.Errorf("read the write-ahead log: %w", err)
		}
	}
}

// gather reads for at most a moment, waking up only for as much as the mark says.
func (t *Tail) gather(limit int, each func(*Insert) error) (n int, err error) {
	until := time.Now().Add(t.pace.patience())
	for {
		err := t.wire.fill(context.Background(), until)
		late := errors.Is(err, errTick)
		if late {
			// What has come is less than the mark, and can be read all the same.
			if err = t.wire.fill(context.Background(), time.Now().Add(100*time.Microsecond)); errors.Is(err, errTick) {
				return n, nil
			}
		}
		if err != nil {
			return n, fmt.Errorf("read the write-ahead log: %w", err)
		}
		parsed, err := t.parse(limit-n, each)
		if n += parsed; err != nil || late || n >= limit {
			return n, err
		}
	}
}

// parse reads what was received. Beyond the limit too, up to the next insert: the end of a transaction lets the
// position go on.
func (t *Tail) parse(limit int, each func(*Insert) error) (n int, err error) {
	for {
		at := t.wire.start
		typ, body, ok := t.wire.frame()
		if !ok {
			return n, nil
		}
		if n >= limit && typ == 'd' && t.isInsert(body) {
			t.wire.start = at
			return n, nil
		}
		switch typ {
		case 'd':
			inserted, err := t.copyData(body, each)
			if err != nil {
				return n, fmt.Errorf("read the write-ahead log: %w", err)
			}
			if inserted {
				n++
			}
		case 'E':
			return n, fmt.Errorf("read the write-ahead log: %w", serverError(body))
		case 'c', 'C':
			return n, errStreamEnded
		case 'N', 'S', 'Z':
		default:
			return n, fmt.Errorf("the server sent an unexpected message %q", typ)
		}
	}
}

// isInsert reports whether a frame is an insert into the table.
func (t *Tail) isInsert(body []byte) bool {
	return len(body) >= 30 && body[0] == 'w' && kind(body[25]) == kindInsert && t.relations[binary.BigEndian.Uint32(body[26:])] != nil
}

func (t *Tail) copyData(body []byte, each func(*Insert) error) (inserted bool, err error) {
	switch {
	case len(body) >= 25 && body[0] == 'w':
		t.mu.Lock()
		t.received = max(t.received, LSN(binary.BigEndian.Uint64(body[1:])))
		t.mu.Unlock()
		return t.change(body[25:], each)
	case len(body) >= 18 && body[0] == 'k':
		t.mu.Lock()
		end := LSN(binary.BigEndian.Uint64(body[1:]))
		t.received = max(t.received, end)
		t.progress.passed(end)
		t.mu.Unlock()
		if body[17] != 0 {
			return false, t.confirm()
		}
		return false, nil
	}
	return false, errCut
}

func (t *Tail) change(data []byte, each func(*Insert) error) (inserted bool, err error) {
	if len(data) > 0 && kind(data[0]) == kindRelation {
		r, err := decodeRelation(data)
		if err != nil {
			return false, err
		}
		t.relations[r.id] = nil
		if r.namespace == t.cfg.Table.Schema && r.name == t.cfg.Table.Name {
			t.relations[r.id] = &r
		}
		return false, nil
	}
	c, err := decode(data)
	if err != nil {
		return false, err
	}
	switch c.kind {
	case kindBegin:
		t.mu.Lock()
		t.progress.begin(c.lsn)
		t.mu.Unlock()
	case kindCommit:
		t.mu.Lock()
		t.progress.commit(c.end)
		t.mu.Unlock()
	case kindInsert:
		if r := t.relations[c.relation]; r != nil {
			return true, t.insert(r, c.tuple, each)
		}
	}
	return false, nil // what is updated and deleted is its author's affair
}

func (t *Tail) insert(r *relation, row tuple, each func(*Insert) error) error {
	if row.columns != len(r.columns) {
		return fmt.Errorf("a row has %d columns and its table %d", row.columns, len(r.columns))
	}
	t.values, t.texts = t.values[:0], t.texts[:0]
	for range row.columns {
		v, err := row.next()
		if err != nil {
			return err
		}
		t.values, t.texts = append(t.values, Value{Null: v.format == formatNull}), append(t.texts, v.data)
	}
	faults, err := t.charset.convert(t.life, t.texts)
	if err != nil {
		return err
	}
	for i, text := range t.texts {
		t.values[i].Text, t.values[i].Fault = text, faults[i]
	}
	t.mu.Lock()
	t.progress.next()
	number := t.progress.deliver()
	t.mu.Unlock()
	return each(&Insert{Number: number, Columns: r.names(), Values: t.values})
}

// names returns the names of the columns, always the same slice.
func (r *relation) names() []string {
	if r.list == nil {
		r.list = make([]string, len(r.columns))
		for i := range r.columns {
			r.list[i] = r.columns[i].name
		}
	}
	return r.list
}

// finish reads the end of a transaction of which everything is settled, or it would come again.
func (t *Tail) finish() {
	until := time.Now().Add(tick)
	for t.unfinished() {
		if _, err := t.parse(0, nil); err != nil || !t.unfinished() {
			return
		}
		if t.waiting() {
			return // another insert: it comes again with the rest
		}
		if t.wire.fill(context.Background(), until) != nil {
			return
		}
	}
}

func (t *Tail) unfinished() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.progress.open && t.progress.idle()
}

// waiting reports whether there is a frame that was received and not read.
func (t *Tail) waiting() bool {
	at := t.wire.start
	_, _, ok := t.wire.frame()
	t.wire.start = at
	return ok
}

// Abort ends the connection as a crash does. For tests, and for a caller that has lost the right to the slot.
func (t *Tail) Abort() {
	t.stop()
	<-t.ended
	t.wire.close()
	t.charset.close()
}

// Close confirms what is settled and ends the stream in good order. Nobody reads any more.
func (t *Tail) Close() error {
	t.stop()
	<-t.ended
	t.finish()
	err := t.confirm()
	t.charset.close()
	t.wire.part()
	return err
}
